#!/usr/bin/env bash
# The log-probabilities of a trainer in PyTorch and of a rollout engine in JAX, recorded, compared and divided. Run it from
# the root of the repository, as it is: it needs torch and jax, and no GPU.
set -euo pipefail
source examples/commands.sh

out=${OUT:-build/importance_ratio}
here=examples.importance_ratio
mkdir -p "$out"
python examples/rollout_vs_trainer/make_model.py "$out"
record=(crosscheck record --force --op linear_logprob --checkpoint "$out/model.safetensors" --embedding-key embed
    --lm-head-key head --token-ids "$out/ids.npy" --max-rows 256)

expect 0 "${record[@]}" -o "$out/trainer" --candidate "trainer=torch:$here.trainer:stock"
expect 0 "${record[@]}" -o "$out/rollout" --candidate "rollout=jax:$here.rollout:stock"
expect 1 crosscheck compare "$out/rollout" "$out/trainer"
expect 0 python examples/importance_ratio/ratio.py "$out/rollout" "$out/trainer"

expect 0 "${record[@]}" -o "$out/trainer-fixed" --candidate "trainer=torch:$here.trainer:fixed_k"
expect 0 "${record[@]}" -o "$out/rollout-fixed" --candidate "rollout=jax:$here.rollout:fixed_k"
expect 0 crosscheck compare "$out/rollout-fixed" "$out/trainer-fixed"
expect 0 python examples/importance_ratio/ratio.py "$out/rollout-fixed" "$out/trainer-fixed"
