"""An S3 server, moto, over the files of a directory; each request has to be signed as botocore signs.

    store.py DIRECTORY REGION KEY SECRET [SESSION-TOKEN]

Serves the bucket `releases` at a free port, which it prints. While DIRECTORY.cut is there, objects break off in their
middle; while DIRECTORY.down is there, every answer is 503.
"""

import datetime
import pathlib
import sys
import urllib.parse

import boto3
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto import mock_aws
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


def refusal(start, status, code):
    start(status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code></Error>".encode()]


class Checked:
    """What moto leaves out: it takes any signature in a URL."""

    def __init__(self, directory, region, credentials):
        self.inner = DomainDispatcherApplication(create_backend_app)
        self.cut, self.down = (pathlib.Path(f"{directory}.{name}") for name in ("cut", "down"))
        self.region, self.credentials = region, credentials

    def wrong(self, environ):
        """Why the request is refused."""
        query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        if "X-Amz-Signature" not in query:
            return "AccessDenied"
        key, date, region, *_ = query["X-Amz-Credential"].split("/")
        if key != self.credentials.access_key:
            return "InvalidAccessKeyId"
        signed_at = datetime.datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        age = (datetime.datetime.now(datetime.UTC) - signed_at).total_seconds()
        if region != self.region or not date == query["X-Amz-Date"][:8] or not -900 < age < int(query["X-Amz-Expires"]):
            return "AuthorizationQueryParametersError"
        if query.get("X-Amz-Security-Token") != self.credentials.token:
            return "InvalidToken"
        given = query.pop("X-Amz-Signature")
        url = f"http://{environ['HTTP_HOST']}{environ['RAW_URI'].split('?')[0]}?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
        request = AWSRequest(method=environ["REQUEST_METHOD"], url=url)
        request.context["timestamp"] = query["X-Amz-Date"]
        auth = S3SigV4QueryAuth(self.credentials, "s3", self.region)
        expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        return None if given == expected else "SignatureDoesNotMatch"

    def __call__(self, environ, start):
        if self.down.exists():
            return refusal(start, "503 Slow Down", "SlowDown")
        if wrong := self.wrong(environ):
            return refusal(start, "403 Forbidden", wrong)
        answer = self.inner(environ, start)
        if self.cut.exists() and environ["REQUEST_METHOD"] == "GET":
            whole = b"".join(answer)
            # The length that was told stands.
            return [whole[: len(whole) // 2]]
        return answer


def main(directory, region, key, secret, token=None):
    with mock_aws():
        s3 = boto3.client("s3", region_name=region, aws_access_key_id=key, aws_secret_access_key=secret)
        s3.create_bucket(Bucket="releases", CreateBucketConfiguration={"LocationConstraint": region})
        for path in pathlib.Path(directory).rglob("*"):
            if path.is_file():
                s3.put_object(Bucket="releases", Key=str(path.relative_to(directory)), Body=path.read_bytes())
        app = Checked(directory, region, Credentials(key, secret, token))
        server = make_server("127.0.0.1", 0, app, threaded=True)
        print(server.port, flush=True)
        server.serve_forever()


main(*sys.argv[1:])
