#!/usr/bin/env bash
# Unpacks Debian's packages of the programs that go into the ramdisk, and all they depend on, for an architecture that
# this machine does not have.
#
#   tools/root.sh arm64
#
# Prints the directory they are in. Nothing is installed or run; what is there already is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-}
case $arch in
  amd64 | arm64) ;;
  *) echo "usage: $0 amd64|arm64" >&2; exit 2 ;;
esac
dir=$PWD/target/root/$arch
mkdir -p target/root
exec 9> "target/root/$arch.lock"
flock 9
if [[ -e $dir/complete ]]; then
  echo "$dir"
  exit 0
fi

work=$(mktemp -d "target/root/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
# apt on a state of its own, so that neither root nor a foreign architecture is needed; as nothing is installed there,
# everything is fetched down to the C library.
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
: > "$work/status"
options=(-qq -o "Dir::State::Lists=$PWD/$work/lists" -o "Dir::State::status=$PWD/$work/status"
  -o "Dir::Cache=$PWD/$work/cache" -o "APT::Architecture=$arch" -o "APT::Architectures::=$arch"
  -o APT::Sandbox::User= -o Acquire::Languages=none -o Debug::NoLocking=1)
apt-get "${options[@]}" update >&2 || true
read -ra packages <<< "$(tools/packages.sh --programs)"
apt-get "${options[@]}" --yes --no-install-recommends --download-only install "${packages[@]}" >&2
for package in "$work"/cache/archives/*.deb; do
  dpkg -x "$package" "$work/root"
done
touch "$work/root/complete"
rm -rf "$dir"
mv "$work/root" "$dir"
echo "$dir"
