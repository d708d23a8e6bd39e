#!/bin/bash
# Runs a command with ROOT as its file system, in namespaces of its own that `run.py` made: process 1
# here is this script, and every mount below disappears with it.
#   enter.sh ROOT [SOURCE...] -- COMMAND...     each SOURCE is visible inside, read-only, at its own path
set -euo pipefail
root=$1
shift
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root$(dirname "$1")" && touch "$root$1"; fi
  mount --bind "$1" "$root$1"
  mount -o remount,bind,ro "$root$1"
  shift
done
shift
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755,nosuid dev "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0 1 2; do
  ln -s "/proc/self/fd/$number" "$root/dev/$(echo stdin stdout stderr | cut -d' ' -f$((number + 1)))"
done
# Not chroot alone: the kernel refuses user namespaces, which sandboxes use, to a chrooted process.
cd "$root"
pivot_root . .
umount -l .
exec chroot . "$@"
