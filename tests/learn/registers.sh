#!/bin/sh
# Checks what tests/registers makes of ptxas's lines: sh registers.sh PATH_OF_REGISTERS
set -u

registers=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# lines MANGLED_NAME BYTES_SPILLED [GPU]: what ptxas -v says of a kernel.
lines() {
  printf "ptxas info    : Compiling entry function '%s' for '%s'\n" "$1" "${3:-sm_90a}"
  printf '    8 bytes stack frame, %s bytes spill stores, %s bytes spill loads\n' "$2" "$2"
  printf 'ptxas info    : Used 250 registers, used 1 barriers\n'
}

# expect STATUS TEXT: what the script says of the log.
expect() {
  "$registers" "$folder/log" >"$folder/out" 2>&1
  status=$?
  if [ "$status" -ne "$1" ] || ! grep -qF -- "$2" "$folder/out"; then
    echo "WRONG: status $status where $1 was expected, or no '$2' in:"
    cat "$folder/out"
    failures=$((failures + 1))
  fi
}

lazy=_ZN10async_copy19lazy_rescale_kernelINS_9AsyncTileI6__halfLi256ELi8ELi1ELi1EEEEEvv
row=_ZN10async_copy16row_tiles_kernelINS_9AsyncTileI6__halfLi128ELi8ELi2ELi1EEEEEvv
fp32=_ZN18recompute_backward15kv_outer_kernelINS_12BackwardTileILi64EEELb1EEEvv

{ lines $lazy 0 && lines $row 60 && lines $fp32 400; } >"$folder/log"
expect 0 '250 registers     0 bytes spilled  async_copy::lazy_rescale_kernel<async_copy::AsyncTile<fp16, 256, 8, 1, 1> >'
expect 0 '250 registers    60 bytes spilled  async_copy::row_tiles_kernel<async_copy::AsyncTile<fp16, 128, 8, 2, 1> >'
lines $lazy 20 >"$folder/log"
expect 1 'lazy_rescale_kernel<async_copy::AsyncTile<fp16, 256, 8, 1, 1> > (sm_90a) spills 20 bytes'
lines $lazy 64 sm_80 >"$folder/log"
expect 0 '64 bytes spilled'
lines $lazy 68 sm_80 >"$folder/log"
expect 1 'spills 68 bytes'
lines $row 68 >"$folder/log"
expect 1 'spills 68 bytes'
# WGMMA's registers are fixed while it runs: there a single spill is an error.
overlap=_ZN19warp_specialization14overlap_kernelINS_15SpecializedTileI6__halfLi128ELb0EEEEEvv
lines $overlap 0 >"$folder/log"
expect 0 'warp_specialization::overlap_kernel'
lines $overlap 4 >"$folder/log"
expect 1 'spills 4 bytes'
# Nor has chapter 09 one.
finish=_ZN20tensor_core_backward13finish_kernelI6__halfLi64EEEvv
lines $finish 0 >"$folder/log"
expect 0 'tensor_core_backward::finish_kernel<fp16, 64>'
lines $finish 4 >"$folder/log"
expect 1 'spills 4 bytes'

serialised='ptxas info    : (C7520) Potential Performance Loss: wgmma.mma_async instructions are serialized in the function'
{ lines $lazy 0 && echo "$serialised '_ZN5wgmma7productILi1EEEvPf'"; } >"$folder/log"
expect 1 'wgmma.mma_async instructions are serialized'
{ lines $lazy 0 && echo "$serialised '_ZN12_GLOBAL__N_17productILi1EEEvPf'"; } >"$folder/log" # of a test
expect 0 'lazy_rescale_kernel'

echo 'ninja: no work to do.' >"$folder/log"
expect 1 'the log names no kernel'
rm "$folder/log"
expect 2 'usage: tests/registers LOG'

[ "$failures" -eq 0 ]
