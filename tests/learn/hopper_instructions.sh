#!/bin/sh
# Checks what tests/hopper_instructions makes of cuobjdump's lines: sh hopper_instructions.sh PATH_OF_HOPPER_INSTRUCTIONS
set -u

script=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
printf '#!/bin/sh\ncat "$2"\n' >"$folder/cuobjdump"
chmod +x "$folder/cuobjdump"

# kernel MANGLED_NAME [INSTRUCTION...]: what cuobjdump -sass says of a kernel.
kernel() {
  printf '\t\tFunction : %s\n' "$1"
  shift
  for instruction in S2R "$@" EXIT; do printf '        /*0010*/       %s R1, R2 ;   /* 0x0 */\n' "$instruction"; done
}

# expect STATUS TEXT [PROGRAM...]: what the script says of programs, by default of one.
expect() {
  status_expected=$1 text=$2
  shift 2
  [ $# -gt 0 ] || set -- "$folder/program"
  PATH=$folder:$PATH "$script" "$@" >"$folder/out" 2>&1
  status=$?
  if [ "$status" -ne "$status_expected" ] || ! grep -qF -- "$text" "$folder/out"; then
    echo "WRONG: status $status where $status_expected was expected, or no '$text' in:"
    cat "$folder/out"
    failures=$((failures + 1))
  fi
}

shared=_ZN5wgmma19shared_tiles_kernelINS_9WgmmaTileI6__halfLi128EEEEEvv
ring=_ZN12tma_pipeline11ring_kernelINS_12PipelineTileI13__nv_bfloat16Li64EEEEEvv
helper=_ZN3gpu7be_busyEv

{ kernel $helper && kernel $shared HGMMA.64x128x16.F32 HGMMA.64x128x16.F32 && kernel $ring HGMMA.64x64x16.F32.BF16 UTMALDG.4D; } \
  >"$folder/program"
expect 0 '    2 HGMMA     0 UTMALDG  wgmma::shared_tiles_kernel<wgmma::WgmmaTile<fp16, 128> >'
expect 0 '    1 HGMMA     1 UTMALDG  tma_pipeline::ring_kernel<tma_pipeline::PipelineTile<bf16, 64> >'
kernel $shared UTMALDG.4D >"$folder/program"
expect 1 'without what its chapter is about'
kernel $ring HGMMA.64x64x16.F32.BF16 UTMASTG.4D >"$folder/program"
expect 1 'tma_pipeline::ring_kernel'
kernel $helper >"$folder/program"
expect 1 'hold no kernel of a chapter'
expect 1 'No such file' "$folder/nowhere"
"$script" >"$folder/out" 2>&1
[ $? -eq 2 ] || failures=$((failures + 1))

[ "$failures" -eq 0 ]
