# shellcheck shell=sh disable=SC2154
# What the script is told is assigned in settings(), which is written before this; tests/install checks the whole.

say() {
  printf 'bcd install: %s\n' "$*"
}

die() {
  code=$1
  shift
  printf 'bcd install: %s\n' "$*" >&2
  exit "$code"
}

check_host() {
  [ "$(uname -s)" = Linux ] || die 1 "this host runs $(uname -s); bcd runs on Linux"
  [ "$(id -u)" = 0 ] || die 1 "run this as root: sudo -E sh install-bcd.sh"
  for tool in systemctl sha256sum; do
    command -v "$tool" >/dev/null 2>&1 || die 1 "$tool is not on this host; a host without systemd runs bcd node by its own means"
  done
  [ -n "$carried" ] || command -v curl >/dev/null 2>&1 || command -v wget >/dev/null 2>&1 || die 1 "neither curl nor wget is on this host: install one of them"
  machine=$(uname -m)
  case $machine in
    x86_64 | amd64) arch=amd64 sha256=$sha256_amd64 ;;
    aarch64 | arm64) arch=arm64 sha256=$sha256_arm64 ;;
    *) die 1 "there is no bcd for $machine, only for amd64 and arm64" ;;
  esac
  [ -n "$sha256" ] || die 1 "this script has no digest for $arch: generate one with --sha256 $arch=..."
}

read_token() {
  token=
  if [ "$attestor" = tpm ]; then
    unset BCD_JOIN_TOKEN
    [ -e /dev/tpmrm0 ] || die 1 "/dev/tpmrm0 is not there: this host has no TPM that its kernel drives, and this script joins by it"
    return
  fi
  token=${BCD_JOIN_TOKEN:-}
  unset BCD_JOIN_TOKEN
  if [ -z "$token" ] && ! [ -t 0 ]; then
    IFS= read -r token || :
  fi
  case $token in
    '') ;;
    *[!A-Za-z0-9._-]*) die 2 "what was given as the join token is none: it looks like bcjt_<id>.<secret>" ;;
    bcjt_?*.?*) ;;
    *) die 2 "what was given as the join token is none: it looks like bcjt_<id>.<secret>" ;;
  esac
  if [ -z "$token" ] && ! [ -e "$config" ]; then
    die 2 "no join token: give it in BCD_JOIN_TOKEN or on standard input; make one with better-compute tokens create"
  fi
}

# What is fetched and made is complete in a directory of its own before anything on the host changes.
download() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' HUP TERM
  fetch bcd "" "$work/bcd"
  verify "$work/bcd" "$sha256"
  [ -z "$install_plugins" ] || fetch_plugins
}

# fetch PRODUCT SUFFIX PATH: from the control plane, or from the directory that was carried here.
fetch() {
  if [ -n "$carried" ]; then
    from=$carried/$1_${version}_linux_$arch$2
    say "taking $from"
    cat "$from" >"$3" || die 1 "$from cannot be read; nothing was installed"
    return
  fi
  from=$downloads/$1/$version/linux-$arch
  say "downloading $from"
  if command -v curl >/dev/null 2>&1; then
    curl --fail --silent --show-error --location --proto '=https' --proto-redir '=https' --tlsv1.2 --retry 3 \
      --connect-timeout 30 --output "$3" "$from" </dev/null || die 1 "the download of $from failed; nothing was installed"
  else
    wget --quiet --https-only --tries=4 --timeout=30 --output-document="$3" "$from" </dev/null ||
      die 1 "the download of $from failed; nothing was installed"
  fi
}

verify() {
  found=$(sha256sum "$1")
  found=${found%% *}
  [ "$found" = "$2" ] || die 1 "$from has the SHA-256 $found, not $2: it is not the release this script was made for; nothing was installed"
}

# has_section NAME FILE
has_section() {
  grep -Eq "^[[:space:]]*\[[[:space:]]*$1[[:space:]]*\]" "$2"
}

# A key of the top level, as it stands in the file: for what an upgrade keeps.
top_key() {
  [ -e "$2" ] || return 0
  awk -v key="$1" '
    /^[ \t]*\[/ { exit }
    $0 ~ "^[ \t]*" key "[ \t]*=" { print; exit }' "$2"
}

# The file's sections, with the comments that stand right above the first.
sections() {
  awk '
    /^[ \t]*\[/ { inside = 1; printf "%s", held; held = "" }
    inside { print; next }
    /^[ \t]*#/ { held = held $0 "\n"; next }
    { held = "" }' "$1"
}

# add_section NAME FLAG: standard input becomes the section, unless the configuration has it already.
add_section() {
  if has_section "$1" "$work/config.toml"; then
    cat >/dev/null
    say "$config has a [$1] section, which stays as it is: $2 changes nothing in it"
  else
    { printf '\n[%s]\n' "$1" && cat; } >>"$work/config.toml"
  fi
}

make_config() {
  config_head >"$work/config.toml"
  for key in approver_set_sha256 command_root_sha256; do
    # What the script does not pin stays pinned as it is.
    grep -q "^$key = " "$work/config.toml" || top_key "$key" "$config" >>"$work/config.toml"
  done
  if [ -e "$config" ]; then
    sections "$config" >"$work/sections"
    if [ -s "$work/sections" ]; then
      { echo && cat "$work/sections"; } >>"$work/config.toml"
    fi
  fi
  config_sections
}

# By the program that will read it, where temporary files may be run.
check_config() {
  chmod 0700 "$work/bcd"
  "$work/bcd" version >/dev/null 2>&1 || return 0
  "$work/bcd" config check --config "$work/config.toml" </dev/null >/dev/null ||
    die 1 "the configuration, with the sections of $config, would not hold, see above: mend them there; nothing was installed"
}

# install_file MODE PATH: standard input becomes PATH, at once or not at all.
install_file() {
  rm -f "$2.new"
  cat >"$2.new"
  chmod "$1" "$2.new"
  mv -f "$2.new" "$2"
}

# directory MODE PATH
directory() {
  [ -d "$2" ] || mkdir -p "$2"
  chmod "$1" "$2"
}

install_files() {
  directory 0700 /etc/bcd
  directory 0700 /var/lib/bcd
  [ -d /etc/cdi ] || directory 0755 /etc/cdi
  if [ -n "$plugins" ]; then
    [ -d /usr/local/lib ] || directory 0755 /usr/local/lib
    directory 0755 /usr/local/lib/bcd
    directory 0755 /usr/local/lib/bcd/plugins
  fi
  [ -d /usr/local/bin ] || directory 0755 /usr/local/bin
  [ -z "$install_plugins" ] || put_plugins
  install_file 0755 "$bcd" <"$work/bcd"
  jwk | install_file 0644 /etc/bcd/join-encryption.jwk
  if [ -n "$proxy_ca" ]; then
    proxy_ca_pem | install_file 0644 /etc/bcd/websocket-proxy-ca.pem
  fi
  install_file 0600 "$config" <"$work/config.toml"
  unit | install_file 0644 "$units/bcd.service"
  dropin=$units/bcd.service.d/plugins.conf
  if has_section plugins "$config"; then
    directory 0755 "$units/bcd.service.d"
    plugins_conf | install_file 0644 "$dropin"
  else
    rm -f "$dropin"
  fi
  sync
  systemctl daemon-reload
}

plugins_conf() {
  plugins_dropin
  # Whether [plugins] privileged names one.
  if awk '
    /^[ \t]*\[/ { inside = ($0 ~ /^[ \t]*\[[ \t]*plugins[ \t]*\]/) }
    inside && /^[ \t]*privileged[ \t]*=[ \t]*("[^"]|'"'"'[^'"'"'])/ { found = 1 }
    END { exit !found }' "$config"; then
    privileged_dropin
  fi
}

check() {
  "$bcd" doctor --config "$config" </dev/null ||
    say "warning: bcd doctor reports a problem, see above; going on"
}

join_and_start() {
  running=
  if systemctl --quiet is-active bcd.service; then running=yes; fi
  if [ "$attestor" = tpm ]; then
    "$bcd" join --config "$config" --attestor tpm </dev/null || die 1 "the join failed, see above; when it is mended, run this again"
    systemctl --quiet enable bcd.service
    systemctl restart bcd.service
  elif [ -n "$token" ]; then
    # printf is the shell's own: the token is in no process listing.
    printf '%s\n' "$token" | "$bcd" join --config "$config" || die 1 "the join failed, see above; when it is mended, run this again with a token"
    token=
    systemctl --quiet enable --now bcd.service
    # It may have run already, with the binary before this one.
    [ -z "$running" ] || systemctl restart bcd.service
  else
    systemctl restart bcd.service
  fi
  say "bcd $version is installed and started; bcd status says how it is, journalctl -u bcd what it does"
}

main() {
  config=/etc/bcd/config.toml
  bcd=/usr/local/bin/bcd
  units=/etc/systemd/system
  carried=${BCD_RELEASE_DIR:-}
  settings
  check_host
  read_token
  download
  make_config
  check_config
  install_files
  check
  join_and_start
}
