"""The control plane's API by plain HTTP: for what the commands of better-compute would not ask."""

import json
import pathlib
import ssl
import urllib.error
import urllib.request


def call(dev, method, path, body=None, timeout=40):
    """Status and JSON of a request below v1/."""
    request = urllib.request.Request(
        f"{dev.info['apiUrl']}/v1/{path}", method=method, data=json.dumps(body).encode() if body is not None else None,
        headers={"Authorization": "Bearer " + pathlib.Path(dev.info["adminTokenFile"]).read_text().strip()})
    context = ssl.create_default_context(cafile=dev.info["caFile"])
    try:
        with urllib.request.urlopen(request, timeout=timeout, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
