#!/usr/bin/env bash
# The README's two commands on a bare Debian 12: a root made by debootstrap, this machine's package settings, a clean clone.
# Needs root (debootstrap, chroot) and about 15 GB. usage: tests/bare.sh [--keep] [ROOT]
set -euo pipefail
cd "$(dirname "$0")/.."
keep=0
if [ "${1:-}" = --keep ]; then keep=1; shift; fi
[ "$(id -u)" -eq 0 ] || { echo "error: tests/bare.sh needs root for debootstrap and chroot" >&2; exit 2; }
command -v debootstrap >/dev/null || apt-get install -y -qq debootstrap >/dev/null
bare=${1:-$(mktemp -d /var/tmp/dovetail-bare.XXXXXX)}
sources=$(ls /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
# shellcheck disable=SC2086
mirror=$(grep -hv '^ *#' $sources | grep -oE '(https?|file)://[^ ]+' | grep -v security | head -n 1 || true)
[ -n "$mirror" ] || { echo "error: no Debian mirror in /etc/apt/sources.list*" >&2; exit 2; }

finish() {
  umount -R "$bare/proc" "$bare/sys" "$bare/dev" 2>/dev/null || true
  [ $keep -eq 1 ] || rm -rf --one-file-system "$bare"
}
trap finish EXIT

debootstrap --variant=minbase --include=ca-certificates bookworm "$bare" "$mirror" >/dev/null
for settings in /etc/apt/apt.conf.d /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/trusted.gpg.d /etc/apt/keyrings \
                /etc/apt/preferences.d /etc/pip.conf /etc/resolv.conf /etc/hosts /etc/ssl/certs /usr/local/share/ca-certificates; do
  [ -e "$settings" ] || continue
  rm -rf "${bare:?}$settings"  # files of debootstrap would otherwise mix with it
  mkdir -p "$bare$(dirname "$settings")"
  cp -aL "$settings" "$bare$(dirname "$settings")/"
done
[ ! -d ~/.config/pip ] || { mkdir -p "$bare/root/.config"; cp -a ~/.config/pip "$bare/root/.config/"; }
[ ! -e ~/.pip/pip.conf ] || { mkdir -p "$bare/root/.pip"; cp -a ~/.pip/pip.conf "$bare/root/.pip/"; }
mount -t proc proc "$bare/proc"
for folder in sys dev; do
  mount --rbind "/$folder" "$bare/$folder"
  mount --make-rslave "$bare/$folder"  # so that unmounting here leaves the host's own mounts alone
done
git clone -q . "$bare/root/dovetail"

# Only package-client settings of this shell go in, nothing else.
settings=$(env | grep -iE '^(https?_proxy|no_proxy|pip_[a-z_]+|ssl_cert_file|requests_ca_bundle)=' || true)
# shellcheck disable=SC2086
inside() { chroot "$bare" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 $settings bash -c "$1"; }
inside 'cd /root/dovetail && ./dev quickstart'
inside 'cd /root/dovetail && ./dev test'
echo "bare: quickstart and tests passed on a bare Debian 12"
