#!/usr/bin/env bash
# An LM head that depends on how many rows it is called with: found, made small, and explained. Run it from the root of
# the repository, as it is: it needs torch, and no GPU.
set -euo pipefail
source examples/commands.sh

out=${OUT:-build/own_head}
mine=(--candidate mine=torch:examples.own_head.head:lm_head)
mended=(--candidate mended=torch:examples.own_head.head:mended)

# The case has digits, and the head takes none: it is held against itself in other batches, and not against the contract.
expect 1 crosscheck run --op lm_head --filter 'lm_head-fp32-N3-K100-*' "${mine[@]}" --reproducers "$out"
expect 1 crosscheck order --op lm_head --width 16 --rows 1,2,3 --vocab 3 "${mine[@]}" "${mended[@]}"
