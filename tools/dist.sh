#!/usr/bin/env bash
# Packs the static bcd into what a release hands out, in dist/ (or the directory that DIST names):
#
#   bcd_<version>_linux_<arch>.tar.gz      program, units, manual pages, completions, licence; beside it its .sha256
#   bcd_<version>_<arch>.deb               the same as a Debian package
#   bcd_<version>_linux_<arch>.spdx.json   which crates are linked into it
#   SHA256SUMS                             of all these and of the bare binaries
#
#   tools/dist.sh [amd64] [arm64]          both when none is named
#
# Takes dist/bcd_<version>_linux_<arch> as tools/static.sh made it, or the file that BCD_AMD64 or BCD_ARM64 names, and better-compute and
# a bcd that run here (BETTER_COMPUTE, BCD_HERE) for pages and completions. The same commit gives the same bytes: every time
# is SOURCE_DATE_EPOCH, the commit's; every order is sorted; every owner is root.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)
fi
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
dist=${DIST:-dist}
better_compute=${BETTER_COMPUTE:-target/operator/better-compute}
[[ -x $better_compute ]] || { echo "dist: $better_compute is not built: run tools/build.sh" >&2; exit 2; }
here=${BCD_HERE:-dist/bcd_${version}_linux_$(dpkg --print-architecture)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

units=src/bin/better-compute/install
# What needs the helper or plugins is for people to put in place. What privileged plugins need comes on top of the rest.
mkdir "$work/examples"
cp "$units"/*.conf "$work/examples"
cat "$units/plugins.conf" "$units/privileged-plugins.conf" > "$work/examples/privileged-plugins.conf"
examples=("$work/examples"/*.conf)

# Every file and directory of a tree: the commit's time, and modes that no umask has a say in.
settle() {
  find "$1" -type d -exec chmod 0755 {} +
  find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# The pages of bcd; the day in them is that of the release.
man_pages() {
  "$better_compute" man --dir "$1" > /dev/null
  find "$1" -type f ! -name 'bcd*.1' -delete
  sed -i "1s/ 1 \"[0-9-]*\"/ 1 \"$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)\"/" "$1"/*.1
}

completions() {
  mkdir -p "$1"
  "$here" completions bash > "$1/bcd.bash"
  "$here" completions zsh > "$1/_bcd"
  "$here" completions fish > "$1/bcd.fish"
}

put() {
  install -D -m "$1" "$2" "$3"
}

tarball() {
  local arch=$1 binary=$2
  local name=bcd_${version}_linux_$arch
  local root=$work/tar-$arch/$name
  put 0755 "$binary" "$root/bcd"
  put 0644 LICENSE "$root/LICENSE"
  put 0644 CHANGELOG.md "$root/CHANGELOG.md"
  local file
  for file in "$units"/*.service; do put 0644 "$file" "$root/systemd/${file##*/}"; done
  for file in "${examples[@]}"; do put 0644 "$file" "$root/systemd/bcd.service.d/${file##*/}"; done
  mkdir -p "$root/man/man1"
  cp "$work"/man/*.1 "$root/man/man1/"
  cp -r "$work/completions" "$root/completions"
  settle "$root"
  tar --create --directory "$work/tar-$arch" --sort=name --owner=0 --group=0 --numeric-owner --format=ustar "$name" |
    gzip -n -9 > "$dist/$name.tar.gz.new"
  mv "$dist/$name.tar.gz.new" "$dist/$name.tar.gz"
  (cd "$dist" && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256")
}

deb() {
  local arch=$1 binary=$2
  local root=$work/deb-$arch doc=usr/share/doc/bcd
  put 0755 "$binary" "$root/usr/bin/bcd"
  local file
  # The units are the install script's; only the program lies elsewhere.
  for file in "$units"/*.service; do
    put 0644 "$file" "$root/usr/lib/systemd/system/${file##*/}"
    sed -i 's,/usr/local/bin/bcd,/usr/bin/bcd,' "$root/usr/lib/systemd/system/${file##*/}"
  done
  for file in "${examples[@]}"; do put 0644 "$file" "$root/$doc/examples/bcd.service.d/${file##*/}"; done
  for file in "$work"/man/*.1; do
    put 0644 "$file" "$root/usr/share/man/man1/${file##*/}"
    gzip -n -9 "$root/usr/share/man/man1/${file##*/}"
  done
  put 0644 "$work/completions/bcd.bash" "$root/usr/share/bash-completion/completions/bcd"
  put 0644 "$work/completions/_bcd" "$root/usr/share/zsh/vendor-completions/_bcd"
  put 0644 "$work/completions/bcd.fish" "$root/usr/share/fish/vendor_completions.d/bcd.fish"
  put 0644 packaging/deb/copyright "$root/$doc/copyright"
  put 0644 packaging/deb/lintian-overrides "$root/usr/share/lintian/overrides/bcd"
  {
    printf 'bcd (%s) unstable; urgency=medium\n\n' "$debian_version"
    printf '  * See CHANGELOG.md, beside this file.\n\n'
    printf ' -- The better-compute maintainers <maintainers@better-compute.invalid>  %s\n' "$(date -u -R -d "@$SOURCE_DATE_EPOCH")"
  } > "$work/changelog"
  put 0644 "$work/changelog" "$root/$doc/changelog"
  put 0644 CHANGELOG.md "$root/$doc/CHANGELOG.md"
  gzip -n -9 "$root/$doc/changelog" "$root/$doc/CHANGELOG.md"
  local size
  size=$(du --summarize --apparent-size --block-size=1024 "$root" | cut -f 1)
  mkdir -p "$root/DEBIAN"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
  sed -e "s/@VERSION@/$debian_version/; s/@ARCH@/$arch/; s/@SIZE@/$size/" packaging/deb/control > "$root/DEBIAN/control"
  for file in postinst prerm postrm; do put 0755 "packaging/deb/$file" "$root/DEBIAN/$file"; done
  settle "$root"
  dpkg-deb --root-owner-group -Zxz -z9 --threads-max=1 --build "$root" "$work/bcd.deb" > /dev/null
  mv "$work/bcd.deb" "$dist/bcd_${version}_$arch.deb"
}

[[ $# -gt 0 ]] || set -- amd64 arm64
# Debian sorts a pre-release behind its release unless a tilde says so.
debian_version=${version/-/\~}
mkdir -p "$dist" "$work/man"
man_pages "$work/man"
completions "$work/completions"
rm -f "$dist/SHA256SUMS"
for arch in "$@"; do
  case $arch in
    amd64) binary=${BCD_AMD64:-dist/bcd_${version}_linux_amd64} ;;
    arm64) binary=${BCD_ARM64:-dist/bcd_${version}_linux_arm64} ;;
    *) echo "usage: $0 [amd64] [arm64]" >&2; exit 2 ;;
  esac
  [[ -f $binary ]] || { echo "dist: $binary is not built: run tools/static.sh $arch" >&2; exit 2; }
  tarball "$arch" "$binary"
  deb "$arch" "$binary"
  python3 tools/sbom.py "$arch" "$binary" "$SOURCE_DATE_EPOCH" > "$work/sbom"
  mv "$work/sbom" "$dist/bcd_${version}_linux_$arch.spdx.json"
done
(
  cd "$dist"
  find . -maxdepth 1 -type f -name "bcd_${version}_*" ! -name '*.sha256' -printf '%f\0' | sort -z | xargs -0 sha256sum > SHA256SUMS.new
  mv SHA256SUMS.new SHA256SUMS
)
cat "$dist/SHA256SUMS"
