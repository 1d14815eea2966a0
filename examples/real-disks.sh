#!/bin/sh
# Makes a file system from whole disks and mounts it.
#
# DISKS has PATH:GROUP for each disk. Disks with the same GROUP fail together: one shelf, one
# controller, one power supply. A stripe has at most as many strips in a group as the code has
# parity strips, where that is possible. Here, six disks in three shelves with 4+2p: a whole shelf
# may fail. A device that holds anything is refused; add --force if its contents may go.
#
#   DISKS="/dev/sdb:1 /dev/sdc:1 …" examples/real-disks.sh --set pagepool=8G
set -eu
data=${DATA:-/srv/strake}
mount=${MNT:-/mnt/strake}
disks=${DISKS:-/dev/sdb:1 /dev/sdc:1 /dev/sdd:2 /dev/sde:2 /dev/sdf:3 /dev/sdg:3}

for disk in $disks; do
    set -- "$@" --nsd "$disk"
done
strake up --data "$data" --mount "$mount" --code 4+2p "$@"
strake disk list --data "$data"
