"""Our MLX loop against the published Python package, in turns, on the nano pair.

Both run greedily with blocks of 8 on the same MLX library, prompt by prompt: the package in this process,
ours as one program per prompt. Loading and prefill are outside both figures. `cargo xtask mlx-peer`
installs the packages and starts this script.
"""

import argparse
import contextlib
import io
import json
import statistics
import subprocess

import dflash.model_mlx as peer
import mlx.core as mx


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True, help="our program, with the mlx backend")
    parser.add_argument("--pair", required=True, help="folder of target-vl, target, d1, d2 and expected.json")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of both sides")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--drafts", default="none,d1,d2")
    options = parser.parse_args()

    peer.snapshot_download = lambda path, **_: path
    dtype = getattr(mx, options.dtype)
    with contextlib.redirect_stdout(io.StringIO()):
        model, tokenizer = peer.load(f"{options.pair}/target-vl")
    model.set_dtype(dtype)
    drafts = {name: None if name == "none" else peer.load_draft(f"{options.pair}/{name}") for name in options.drafts.split(",")}
    for draft in drafts.values():
        if draft is not None:
            draft.set_dtype(dtype)

    def theirs(draft, prompt):
        if draft is None:
            return plain(model, tokenizer, prompt)
        *_, last = peer.stream_generate(model, draft, tokenizer, prompt, block_size=8, max_tokens=200)
        return last.generation_tps

    def ours(name, prompt):
        command = [options.binary, "generate", "--model", f"{options.pair}/target", "--backend", "mlx", "--json",
                   "--dtype", {"bfloat16": "bf16", "float32": "f32"}[options.dtype],
                   "--prompt-ids", ",".join(map(str, prompt)), "--max-tokens", "200", "--block-size", "8",
                   "--draft", name if name == "none" else f"{options.pair}/{name}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            raise SystemExit(f"{' '.join(command)}\n{found.stderr}")
        return json.loads(found.stdout)["generation_tps"]

    with open(f"{options.pair}/expected.json", encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    # The longest texts: a text of a few rounds measures nothing.
    cases.sort(key=lambda case: -len(case["tokens"]))
    prompts = [case["prompt_ids"] for case in cases[: options.prompts]]
    for name, draft in drafts.items():
        theirs(draft, prompts[0])
        mine, other = [], []
        for prompt in prompts:
            turns = [(ours(name, prompt), theirs(draft, prompt)) for _ in range(options.repeats)]
            mine.append(statistics.median(a for a, _ in turns))
            other.append(statistics.median(b for _, b in turns))
        ratios = [a / b for a, b in zip(mine, other)]
        print(f"{name:5} {options.dtype}: ours {statistics.median(mine):6.1f} tok/s, "
              f"package {statistics.median(other):6.1f} tok/s, ratio {statistics.median(ratios):.2f} "
              f"({min(ratios):.2f} to {max(ratios):.2f}, {len(prompts)} prompts)", flush=True)


def plain(model, tokenizer, prompt):
    from mlx_lm.generate import stream_generate

    *_, last = stream_generate(model, tokenizer, mx.array(prompt), max_tokens=200)
    return last.generation_tps


if __name__ == "__main__":
    main()
