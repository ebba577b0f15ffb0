#!/usr/bin/env bash
# From a fresh machine to a trained model: installs what is missing, builds what it runs, trains a byte-level GPT on real English
# text, compares its held-out loss with a bigram and a trigram, prints a sample. Safe to repeat.
#   scripts/quickstart.sh [--long] [TEXT_FILE]     --long trains for about ten minutes instead of about one
set -euo pipefail
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0") caller=$PWD
cd "$(dirname "$self")/.."

long=0 text=""
for argument in "$@"; do
  case "$argument" in
    --long) long=1 ;;
    -h | --help) sed -n '2,4p' "$self" | sed 's/^# //'; exit 0 ;;
    -*) echo "error: quickstart: unknown option $argument (known: --long)" >&2; exit 64 ;;
    *) [ -z "$text" ] || { echo "error: quickstart: $text and $argument: one text file is learnt" >&2; exit 64; }; text=$argument ;;
  esac
done
case $text in '' | /*) ;; *) text=$caller/$text ;; esac
say() { printf '\n== %s\n' "$*"; }
if [ -n "$text" ] && { [ -d "$text" ] || [ ! -r "$text" ]; }; then
  echo "error: quickstart: cannot read $text; give a plain text file" >&2
  exit 64
fi
measure() {
  bytes=$(wc -c <"$1")
  [ "$bytes" -lt 100000 ] || return 0
  echo "error: quickstart: the text has $bytes bytes; at least 100000 are needed to learn anything" >&2
  exit 65
}
[ ! -f "$text" ] || measure "$text" # before the minutes of building

say "1/5 packages"
packages=(--quickstart)
[ -n "$text" ] || packages+=(--with fortunes)
scripts/install_deps.sh "${packages[@]}" || {
  [ -n "$text" ] || [ -d /usr/share/games/fortunes ] || echo "quickstart: without Debian's fortunes give a text of your own: scripts/quickstart.sh TEXT_FILE" >&2
  exit 1
}

say "2/5 build (train, tokenize, generate, report)"
[ -f build/build.ninja ] || cmake --preset cpu -DTHINWIRE_TESTS=OFF >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
rm -f build-configure.log
cmake --build build --target train tokenize generate report -j "$(nproc)" | tail -n 1

say "3/5 text"
work=runs/quickstart
[ "$long" = 0 ] || work=runs/quickstart-long
# Not below $work yet: TEXT_FILE may be what an earlier quickstart has left there.
mkdir -p runs
fresh=$(mktemp -d "$work.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
if [ -n "$text" ]; then
  cp "$text" "$fresh/all.txt"
else
  # Debian's fortunes: a few thousand short English texts, one per "%" line.
  find /usr/share/games/fortunes -maxdepth 1 -type f ! -name '*.dat' ! -name '*.u8' | LC_ALL=C sort | while read -r file; do
    sed 's/^%$//' "$file"
    echo
  done >"$fresh/all.txt"
fi
measure "$fresh/all.txt"
rm -rf "$work"
mkdir -p "$work/text"
mv "$fresh/all.txt" "$work/text/all.txt"
# The last 5 % are held out.
head -c $((bytes * 95 / 100)) "$work/text/all.txt" >"$work/text/train.txt"
tail -c $((bytes - bytes * 95 / 100)) "$work/text/all.txt" >"$work/text/valid.txt"
for part in train valid; do
  build/tokenize --input "$work/text/$part.txt" --tokenizer byte --output "$work/text/$part"
done

say "4/5 training"
overrides=()
[ "$long" = 0 ] || overrides=(train_iters=4200 lr_decay_iters=4200 eval_interval=700)
build/train --config configs/quickstart.json run_dir="$work/run" \
  train_data_paths="[\"$work/text/train_text_document\"]" valid_data_paths="[\"$work/text/valid_text_document\"]" "${overrides[@]}"

say "5/5 result"
build/report "$work/run" --output "$work/run/report.html"
eval_loss=$(sed -n 's/.*"eval_loss":\([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n 1)
baseline=$(python3 scripts/ngram_baseline.py "$work/text/train_text_document" "$work/text/valid_text_document")
echo "a sample of what it writes:"
build/generate --load "$work/run" --prompt "The " --tokens 300 --temperature 0.8 --seed 1
echo
echo "report: $work/run/report.html"
# shellcheck disable=SC2086
set -- $baseline
LC_ALL=C printf 'quickstart: eval_loss %.4f bigram %s trigram %s\n' "$eval_loss" "$2" "$4"
limit=$2
[ "$long" = 0 ] || limit=$4
if ! awk -v a="$eval_loss" -v b="$limit" 'BEGIN { exit !(a < b) }'; then
  echo "error: quickstart: the model did not learn more than the baseline" >&2
  exit 1
fi
