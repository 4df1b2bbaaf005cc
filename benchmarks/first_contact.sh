#!/usr/bin/env bash
# Tries and measures the library on a card: two runs of less than ten minutes each, the most valuable steps first.
#   bash benchmarks/first_contact.sh          ends by itself after BUDGET seconds (555)
#   bash benchmarks/first_contact.sh rest     what the first run leaves (185 s)
#   bash benchmarks/first_contact.sh again    tests, and the cost of updates, after faults were mended (230 s)
# Needs torch for CUDA, Triton, numpy, torchmetrics, torch-geometric, pytest with xdist and timeout, hypothesis; installs
# nothing. Results are in $OUT (default: /tmp/first_contact): summary.txt, log.txt, and the lines of JSON of each step.
set -u -o pipefail
cd "$(dirname "$0")/.."
export OUT=${OUT:-/tmp/first_contact} PYTHONPATH=$PWD PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
unset TRITON_INTERPRET
mkdir -p "$OUT"
PYTHON=${PYTHON:-python3} TINY=${TINY:-} WORKERS=${WORKERS:-12}
BUDGET=${BUDGET:-555}
step() {  # step NAME SECONDS LINES COMMAND...: never ends the script; prints the last LINES of the output
  local name=$1 limit=$2 lines=$3 begin=$SECONDS code left
  shift 3
  left=$((BUDGET - SECONDS - 5))
  if [ "$left" -lt 15 ]; then echo "$name SKIPPED: $left s left" | tee -a "$OUT/summary.txt"; return; fi
  [ "$limit" -gt "$left" ] && limit=$left
  timeout -k 5 "$limit" "$@" > "$OUT/step" 2>&1
  code=$?
  { echo "===== $name: $*"; cat "$OUT/step"; } >> "$OUT/log.txt"
  grep '^{' "$OUT/step" >> "$OUT/rows.jsonl"
  printf '%-12s rc %-4s %4s s of %s\n' "$name" "$code" $((SECONDS - begin)) "$limit" | tee -a "$OUT/summary.txt"
  grep -E '^(FAILED|ERROR)' "$OUT/step" | cut -c1-200 | sort -u | head -n 25
  grep -v '^{' "$OUT/step" | tail -n "$lines" | cut -c1-400
}
tests() {  # tests NAME SECONDS ARGUMENTS...
  step "$1" "$2" 2 "$PYTHON" -m pytest -q -o addopts= --import-mode=importlib -o filterwarnings=default --tb=short \
    -p no:cacheprovider --timeout 150 -n "$WORKERS" "${@:3}"
}
card() { step "$1" "$2" "$3" "$PYTHON" -m benchmarks.card "${@:4}" $TINY; }
NUMERIC="tests/core tests/inputs tests/kernels tests/metrics tests/data tests/collection/test_collection.py"
case ${1:-first} in
  first)
    card versions 40 12 versions
    step kernels 100 4 "$PYTHON" tests/gpu/small_case.py
    tests gpu 170 tests/gpu --deselect tests/gpu/test_sanitizer.py
    tests conformance 60 tests/test_conformance.py -k cuda
    card updates 70 2 updates
    card scores 110 12 rows card-scores card-all-metrics
    card card-1M-items 90 6 rows card-1M-items
    card card-embeddings 60 6 rows card-embeddings
    tests numeric 90 $NUMERIC -k cuda
    ;;
  rest)
    BUDGET=${REST:-185}
    card strategies 60 1 strategies
    card products 40 1 products
    card card-100M-items 80 6 rows card-100M-items
    card rates 30 1 rates
    step memcheck 60 3 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 \
      "$PYTHON" tests/gpu/small_case.py
    for name in scores-1 products-1; do
      step "ncu-$name" 40 12 ncu --clock-control none --set basic --kernel-name 'regex:_by_' --launch-skip 1 \
        --launch-count 1 "$PYTHON" -m benchmarks.card launch "$name"
    done
    ;;
  again)  # after faults were mended
    BUDGET=${REST:-230}
    card versions 40 1 versions
    tests numeric 90 $NUMERIC tests/evaluation tests/collection/test_collect_sessions.py -k cuda
    tests gpu 100 tests/gpu --deselect tests/gpu/test_sanitizer.py
    card updates 50 2 updates
    card scores 80 12 rows card-scores card-all-metrics
    card products 40 1 products
    ;;
  *) echo "usage: first_contact.sh [rest | again]" >&2; exit 2 ;;
esac
echo "--- summary ($SECONDS s)"; cat "$OUT/summary.txt"
rm -f "$OUT/step"
