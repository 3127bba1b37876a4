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

# section_value SECTION KEY FILE: what stands behind the key, as it stands there; nothing where it does not.
section_value() {
  awk -v section="$1" -v key="$2" '
    /^[ \t]*\[/ { inside = ($0 ~ "^[ \t]*\\[[ \t]*" section "[ \t]*\\]") }
    inside && $0 ~ "^[ \t]*" key "[ \t]*=" { sub(/^[^=]*=[ \t]*/, ""); print; exit }' "$3"
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
  if [ -n "$instance_bridges" ] && [ -z "$(section_value helper instance_bridges "$work/config.toml")" ]; then
    awk -v line="instance_bridges = \"$instance_bridges\"" '
      { print }
      /^[ \t]*\[[ \t]*helper[ \t]*\]/ { print line }' "$work/config.toml" >"$work/bridges"
    mv -f "$work/bridges" "$work/config.toml"
  fi
}

# Whether bcd node runs without rights is the configuration's to say, not the flag's.
check_helper() {
  helper=
  has_section helper "$work/config.toml" || return 0
  helper=yes
  if has_section plugins "$work/config.toml"; then
    die 1 "$config would have [helper] and [plugins]: bcd node would need root to start plugins; take one of them out; nothing was installed"
  fi
  case $(section_value helper user "$work/config.toml") in
    '"bcd"'* | "'bcd'"*) ;;
    *) die 1 "[helper] user in $config is not bcd, the account that this script sets up; nothing was installed" ;;
  esac
  if ! grep -q '^bcd:' /etc/passwd; then
    command -v useradd >/dev/null 2>&1 || command -v adduser >/dev/null 2>&1 ||
      die 1 "neither useradd nor adduser is on this host: make a system account bcd with a group of its own; nothing was installed"
  fi
  command -v chown >/dev/null 2>&1 || die 1 "chown is not on this host; nothing was installed"
}

# By the program that will read it, where temporary files may be run.
check_config() {
  chmod 0700 "$work/bcd"
  "$work/bcd" version >/dev/null 2>&1 || return 0
  "$work/bcd" config check --config "$work/config.toml" </dev/null >/dev/null ||
    die 1 "the configuration, with the sections of $config, would not hold, see above: mend them there; nothing was installed"
}

# install_file MODE PATH [GROUP]: standard input becomes PATH, at once or not at all.
install_file() {
  rm -f "$2.new"
  cat >"$2.new"
  [ -z "${3:-}" ] || chown "root:$3" "$2.new"
  chmod "$1" "$2.new"
  mv -f "$2.new" "$2"
}

# directory MODE PATH
directory() {
  [ -d "$2" ] || mkdir -p "$2"
  chmod "$1" "$2"
}

# make_account: bcd, with a group of its own, in this host's own files: bcd reads no others.
make_account() {
  if ! grep -q '^bcd:' /etc/passwd; then
    if command -v useradd >/dev/null 2>&1; then
      useradd --system --no-create-home --home-dir /var/lib/bcd --shell /usr/sbin/nologin bcd
    else
      grep -q '^bcd:' /etc/group || addgroup -S bcd
      adduser -S -D -H -h /var/lib/bcd -s /usr/sbin/nologin -G bcd bcd
    fi
  fi
  # Where useradd makes no group for each account.
  if ! grep -q '^bcd:' /etc/group; then
    groupadd --system bcd
    usermod -g bcd bcd
  fi
}

# in_group ACCOUNT GROUP
in_group() {
  grep -Eq "^$2:[^:]*:[^:]*:(.*,)?$1(,.*)?\$" /etc/group
}

# Earlier scripts let the account at the TPM, which it could have locked or cleared.
leave_tpm() {
  if in_group bcd tss; then
    if command -v gpasswd >/dev/null 2>&1; then gpasswd -d bcd tss >/dev/null; else delgroup bcd tss; fi
    say "bcd is no longer in the group tss"
  fi
  rm -f /etc/udev/rules.d/60-bcd-tpm.rules
}

# libvirt gives no path that the node names to anybody, and QEMU reaches the node's disks by the group bcd.
set_libvirt() {
  qemu_conf=/etc/libvirt/qemu.conf
  [ -e "$qemu_conf" ] || return 0
  awk '
    /^[ \t]*#?[ \t]*dynamic_ownership[ \t]*=/ { if (!done) print "dynamic_ownership = 0"; done = 1; next }
    { print }
    END { if (!done) print "dynamic_ownership = 0" }' "$qemu_conf" >"$work/qemu.conf"
  install_file 0600 "$qemu_conf" <"$work/qemu.conf"
  for account in libvirt-qemu qemu; do
    if grep -q "^$account:" /etc/passwd; then
      in_group "$account" bcd || usermod -a -G bcd "$account" 2>/dev/null || addgroup "$account" bcd
      break
    fi
  done
  for daemon in virtqemud.service libvirtd.service; do
    if systemctl --quiet is-active "$daemon"; then
      systemctl restart "$daemon"
      break
    fi
  done
}

# What was made as root: under the helper, all of it is the account's.
give_state() {
  [ -z "$helper" ] || chown -R -h bcd:bcd /var/lib/bcd
}

install_files() {
  if [ -n "$helper" ]; then
    make_account
    directory 0750 /etc/bcd
    chown root:bcd /etc/bcd
  else
    directory 0700 /etc/bcd
  fi
  directory 0700 /var/lib/bcd
  give_state
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
  if [ -n "$helper" ]; then
    install_file 0640 "$config" bcd <"$work/config.toml"
  else
    install_file 0600 "$config" <"$work/config.toml"
  fi
  unit | install_file 0644 "$units/bcd.service"
  dropins=$units/bcd.service.d
  if has_section plugins "$config"; then
    directory 0755 "$dropins"
    plugins_conf | install_file 0644 "$dropins/plugins.conf"
  else
    rm -f "$dropins/plugins.conf"
  fi
  if [ -n "$helper" ]; then
    [ -d /usr/local/lib ] || directory 0755 /usr/local/lib
    # For the slots of updates, which bcd node has to reach whatever the umask.
    directory 0755 /usr/local/lib/bcd
    leave_tpm
    set_libvirt
    helper_unit | install_file 0644 "$units/bcd-helper.service"
    directory 0755 "$dropins"
    unprivileged_dropin | install_file 0644 "$dropins/unprivileged.conf"
  elif [ -e "$dropins/unprivileged.conf" ]; then
    chown root:root /etc/bcd
    rm -f "$dropins/unprivileged.conf"
    say "$config has no [helper] section any more: bcd node runs as root again; systemctl disable --now bcd-helper.service ends the helper"
  fi
  sync
  systemctl daemon-reload
}

plugins_conf() {
  plugins_dropin
  # Whether [plugins] privileged names one.
  case $(section_value plugins privileged "$config") in
    '"'[!\"]* | "'"[!\']*) privileged_dropin ;;
  esac
}

check() {
  "$bcd" doctor --config "$config" </dev/null ||
    say "warning: bcd doctor reports a problem, see above; going on"
}

join_and_start() {
  running=
  did="$version is installed and started"
  if systemctl --quiet is-active bcd.service; then running=yes; fi
  # The helper first: bcd.service is ordered after it.
  set -- bcd.service
  [ -z "$helper" ] || set -- bcd-helper.service bcd.service
  if [ "$attestor" = tpm ]; then
    "$bcd" join --config "$config" --attestor tpm </dev/null || die 1 "the join failed, see above; when it is mended, run this again"
    give_state
    systemctl --quiet enable "$@"
    systemctl restart "$@"
  elif [ -n "$token" ]; then
    # printf is the shell's own: the token is in no process listing.
    printf '%s\n' "$token" | "$bcd" join --config "$config" || die 1 "the join failed, see above; when it is mended, run this again with a token"
    token=
    give_state
    systemctl --quiet enable --now "$@"
    # It may have run already, with the binary before this one.
    [ -z "$running" ] || systemctl restart "$@"
  else
    give_state
    [ -z "$helper" ] || systemctl --quiet enable bcd-helper.service
    systemctl restart "$@"
    did="upgraded to $version and restarted"
  fi
  say "bcd $did."
  say "bcd status says how it is, journalctl -u bcd what it does"
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
  check_helper
  install_files
  check
  join_and_start
}
