#!/usr/bin/env bash
# A Triton gather and its Pallas port, judged side by side. Run it from the root of the repository, as it is: it needs
# torch, triton and jax, and no GPU.
set -euo pipefail
source examples/commands.sh

export TRITON_INTERPRET=1 # Triton's own interpreter; leave it out, and add --device cuda, where there is a GPU
judge=(crosscheck run --op embedding --filter 'embedding-bf16-N2x3-H4096-V33-int64')
here=examples.port_gather

expect 1 "${judge[@]}" --candidate "triton=torch:$here.triton_gather:gather" --candidate "port=jax:$here.pallas_gather:first_port"
expect 0 "${judge[@]}" --candidate "port=jax:$here.pallas_gather:gather"
