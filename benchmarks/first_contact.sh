#!/usr/bin/env bash
# The kernels' first card: five stages of at most ten minutes each, results under $OUT (default: /tmp/first_contact).
# Needs torch for CUDA, Triton, numpy, torchmetrics, torch-geometric, pytest with xdist and timeout, hypothesis; nothing is installed.
#   bash benchmarks/first_contact.sh 1     the card, every kernel once, what it does at best, G1 and G2
#   bash benchmarks/first_contact.sh 2     tests/gpu, and the core's tests on the card with eager
#   bash benchmarks/first_contact.sh 3     G3, G4, G5
#   bash benchmarks/first_contact.sh 4     the sweep
#   bash benchmarks/first_contact.sh 5     profiles, then memcheck and racecheck
# If a test of stage 1 or 2 fails, times say nothing: mend it first. Keep $OUT between stages, and commit what 3 wrote.
set -u -o pipefail
cd "$(dirname "$0")/.."
export OUT=${OUT:-/tmp/first_contact} PYTHONPATH=$PWD PYTHONUNBUFFERED=1
unset TRITON_INTERPRET
mkdir -p "$OUT"
stage=${1:?stage 1 to 5}
step() {  # step NAME SECONDS COMMAND...: never ends the script
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  timeout -k 5 "$limit" "$@" > "$OUT/$stage-$name.log" 2>&1
  code=$?
  printf '%-16s rc %-4s %4s s\n' "$name" "$code" $((SECONDS - begin)) | tee -a "$OUT/summary.txt"
  tail -n 5 "$OUT/$stage-$name.log"
}
tests() { step "$1" "$2" python3 -m pytest -q -o addopts= -p no:cacheprovider --timeout 240 -n "$3" "${@:4}"; }
rows() { step "$1" "$2" python3 -m benchmarks run --device cuda --only "$1" --no-memory --out "$OUT/$1.json"; }
case $stage in
  1)
    step card 30 bash -c 'nvidia-smi; python3 -m pip list 2>/dev/null | grep -i -E "^(torch|triton|numpy|pytest)"'
    step kernels 90 python3 tests/gpu/small_case.py
    tests first 150 8 tests/gpu/test_scores.py tests/gpu/test_products.py -k "eager or settled or whole_numbers"
    step rates 60 python3 -m benchmarks.card rates
    rows G1 130
    rows G2 60
    ;;
  2)
    tests products 250 8 tests/gpu/test_products.py
    tests update 150 8 tests/gpu/test_update.py tests/gpu/test_scores.py
    tests memory 60 0 tests/gpu/test_memory.py
    tests eager 100 8 tests/kernels/test_eager.py tests/ranking/test_scores.py tests/test_metrics.py
    ;;
  3) rows G3 120; rows G4 220; rows G5 230 ;;
  4) step sweep 580 python3 -m benchmarks.card sweep ;;
  5)
    step profile 120 python3 -m benchmarks.card profile
    for name in scores-1 scores-10 scores-50 products-1 products-20; do
      step "ncu-$name" 45 ncu --set detailed --kernel-name 'regex:_by_' --launch-skip 1 --launch-count 1 \
        python3 -m benchmarks.card launch "$name"
    done
    for tool in memcheck racecheck; do
      step "$tool" 110 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        python3 tests/gpu/small_case.py
    done
    ;;
  *) echo "stage 1 to 5" >&2; exit 2 ;;
esac
