#!/usr/bin/env python3
"""What is linked into bcd, as SPDX 2.3 in JSON, on standard output.

    sbom.py ARCH BINARY EPOCH

Names the crates of bcd's own normal tree for the target that ships, as cargo resolves it, with version, licence and the digest
that Cargo.lock has; and what comes with the toolchain. The same arguments and tree give the same bytes.
"""

import datetime
import hashlib
import json
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/deps"))
import check_deps  # noqa: E402

HOME = "https://github.com/better-compute/better-compute"
TARGETS = {"amd64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}
# They are part of the compiler that builds bcd, and no crates of the lock file.
TOOLCHAIN = [("rust-std", "Rust's standard library", "MIT OR Apache-2.0"), ("musl", "the C library", "MIT"),
             ("libgcc", "the compiler's helper routines", "GPL-3.0-or-later WITH GCC-exception-3.1")]


def spdx_id(name, version=""):
    return "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{name}-{version}".rstrip("-"))


def package(name, version, licence, **more):
    entry = {"SPDXID": spdx_id(name, version or ""), "name": name, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
             "licenseConcluded": "NOASSERTION", "licenseDeclared": licence or "NOASSERTION", "copyrightText": "NOASSERTION"}
    if version:
        entry["versionInfo"] = version
    return {**entry, **more}


def document(arch, binary, epoch):
    target = TARGETS[arch]
    meta = check_deps.metadata(target, [])
    bcd = next(p for p in meta["packages"] if p["name"] == "bcd" and p["source"] is None)
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    digests = {(p["name"], p["version"]): p.get("checksum") for p in lock}
    sha256 = hashlib.sha256(pathlib.Path(binary).read_bytes()).hexdigest()
    main = package("bcd", bcd["version"], bcd["license"], primaryPackagePurpose="APPLICATION", downloadLocation=f"git+{HOME}",
                   checksums=[{"algorithm": "SHA256", "checksumValue": sha256}],
                   packageFileName=f"bcd_{bcd['version']}_linux_{arch}")
    packages = [main]
    for crate in check_deps.shipped(meta, target):
        # A crate's own old notation for "either".
        licence = (crate["license"] or "").replace("/", " OR ")
        entry = package(crate["name"], crate["version"], licence)
        if digest := digests.get((crate["name"], crate["version"])):
            entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest}]
            entry["downloadLocation"] = f"https://crates.io/api/v1/crates/{crate['name']}/{crate['version']}/download"
            entry["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                      "referenceLocator": f"pkg:cargo/{crate['name']}@{crate['version']}"}]
        packages.append(entry)
    for name, what, licence in TOOLCHAIN:
        packages.append(package(name, None, licence, comment=f"{what}, of the toolchain that built the program"))
    links = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": main["SPDXID"]}]
    links += [{"spdxElementId": main["SPDXID"], "relationshipType": "STATIC_LINK", "relatedSpdxElement": p["SPDXID"]} for p in packages[1:]]
    created = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"bcd_{bcd['version']}_linux_{arch}",
            "documentNamespace": f"{HOME}/spdx/bcd_{bcd['version']}_linux_{arch}-{sha256}",
            "creationInfo": {"created": created, "creators": ["Tool: tools/sbom.py"]}, "packages": packages, "relationships": links}


print(json.dumps(document(*sys.argv[1:]), indent=1))
