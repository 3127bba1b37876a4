#!/usr/bin/env bash
# Unpacks Debian's SSH server, what makes its keys, and what of their libraries this machine has not, for the labs. Nothing
# is installed or started.
#
# Prints the directory they are in; what is there already is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$PWD/target/sshd
mkdir -p target
exec 9> target/sshd.lock
flock 9
if [[ -e $dir/complete ]]; then
  echo "$dir"
  exit 0
fi
work=$(mktemp -d target/sshd.new.XXXXXX)
trap 'rm -rf "$work"' EXIT
server="openssh-server openssh-client"
# 'URL' NAME_VERSION_ARCH.deb SIZE HASH
mapfile -t packages < <({
  tr ' ' '\n' <<< "$server"
  # shellcheck disable=SC2086
  apt-get -qq --no-install-recommends --print-uris install $server | sed -E "s/^'[^']*' ([^_]+)_.*/\1/"
} | sort -u)
(cd "$work" && apt-get -qq -o APT::Sandbox::User= download "${packages[@]}" >&2)
for package in "$work"/*.deb; do
  dpkg -x "$package" "$work/root"
done
# Debian 12's packages have parts outside of /usr still.
[[ ! -d $work/root/lib ]] || cp -a "$work/root/lib/." "$work/root/usr/lib/"
touch "$work/root/complete"
rm -rf "$dir"
mv "$work/root" "$dir"
echo "$dir"
