#!/bin/sh
# Checks that every link of the site inside itself leads to a file that is there: sh tests/learn/site_links.sh FOLDER
set -eu
cd "$1"

grep -oE '(href|src|data)="[^"#?]+' ./*.html | sed -E 's/:(href|src|data)="/ /' | sort -u >links.txt
trap 'rm -f links.txt' EXIT

checked=0
broken=0
while read -r page target; do
  case $target in *:*) continue ;; esac
  checked=$((checked + 1))
  if [ ! -e "$target" ]; then
    echo "$page links to $target, which is not there"
    broken=$((broken + 1))
  fi
done <links.txt

if [ "$checked" -eq 0 ] || [ "$broken" -ne 0 ]; then
  echo "$broken of $checked links are broken"
  exit 1
fi
echo "$checked links lead to files of the site"
