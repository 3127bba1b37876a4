# shellcheck shell=sh disable=SC2154
# Plugins from the release; stands in scripts that install some, after install.sh.

# The plugins' archives are checked and opened before anything on the host changes.
fetch_plugins() {
  command -v tar >/dev/null 2>&1 || die 1 "tar is not on this host, and this script installs plugins from archives"
  for plugin in $install_plugins; do
    digest=$(plugin_digest "$plugin-$arch")
    [ -n "$digest" ] || die 1 "the release has no $plugin for $arch; nothing was installed"
    archive=$work/$plugin.tar.gz
    fetch "$plugin" .tar.gz "$archive"
    verify "$archive" "$digest"
    open_archive
  done
}

refuse_archive() {
  die 1 "the archive of $plugin $1; nothing was installed"
}

# Of the archive, the one file that is named as the plugin is read, and nothing is written by the archive's own names.
open_archive() {
  # Some tars take a leading slash away, and say so.
  tar -tzf "$archive" >"$work/names" 2>"$work/said" || refuse_archive "cannot be read: $(cat "$work/said")"
  if grep -Eq '^/|(^|/)\.\.(/|$)' "$work/names" || grep -q emoving "$work/said"; then
    refuse_archive "names a path outside it"
  fi
  [ "$(grep -cxF "$plugin" "$work/names")" = 1 ] || refuse_archive "has no file $plugin, or more than one"
  # Some tars show a hard link as a file, with what it links to behind.
  case $(tar -tvzf "$archive" "$plugin") in
    *" -> "* | *" link to "*) refuse_archive "has a link in the place of the file $plugin" ;;
    -*) ;;
    *) refuse_archive "has something else than a regular file in the place of $plugin" ;;
  esac
  # No archive fills the disk.
  (ulimit -f 524288 && tar -xzOf "$archive" "$plugin" >"$work/$plugin") 2>/dev/null ||
    refuse_archive "does not give $plugin: it is damaged, or too big"
  rm -f "$archive"
}

put_plugins() {
  pins=/usr/local/lib/bcd/plugins/pins
  for plugin in $install_plugins; do
    digest=$(sha256sum <"$work/$plugin")
    digest=${digest%% *}
    install_file 0755 "/usr/local/lib/bcd/plugins/$plugin" <"$work/$plugin"
    {
      [ ! -e "$pins" ] || awk -v name="$plugin" '{ pinned = $2; sub(/^[*]/, "", pinned) } pinned != name' "$pins"
      printf '%s  %s\n' "$digest" "$plugin"
    } >"$work/pins"
    install_file 0644 "$pins" <"$work/pins"
    say "the plugin $plugin is installed and pinned"
  done
}

