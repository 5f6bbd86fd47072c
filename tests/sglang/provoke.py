"""Has SGLang's own argument checks refuse a table of command lines, and keeps what they print; see README.md.

    python tests/sglang/provoke.py PYTHON     # PYTHON: the interpreter of an environment with the real sglang wheel

The words, the order of the checks and the traceback are SGLang's; only the libraries below it are stood in for
(`stubs.py`). It must never write a text itself: a check that did not refuse leaves no file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
KEPT = HERE.parent / "data" / "sglang" / "provoked"
CONTAINER = "/sgl-workspace/sglang/python"
"""Where the official images have the package: written in place of this machine's path."""


class Attempt(NamedTuple):
    """One command line that SGLang must refuse."""

    name: str
    """The log's file name."""
    rule: str
    """The rule that must explain it."""
    arguments: str
    model: str = "llama"
    gpu: str = "10.0/12.9"
    """Compute capability and CUDA version that torch reports."""


MODELS: dict[str, dict[str, object]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    },
    "hybrid": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048, "head_dim": 256,
        "num_attention_heads": 16, "num_hidden_layers": 48, "num_key_value_heads": 2, "vocab_size": 151936,
        "intermediate_size": 5120, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "full_attention_interval": 4, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "head_dim": 64,
        "num_attention_heads": 64, "num_hidden_layers": 24, "num_key_value_heads": 8, "vocab_size": 201088,
        "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    },
    "olmo3": {
        "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 100278,
        "max_position_embeddings": 65536, "sliding_window": 4096, "torch_dtype": "bfloat16",
    },
}  # fmt: skip

HOPPER, BLACKWELL_13, RTX, AMPERE = "9.0/12.9", "10.0/13.0", "12.0/12.9", "8.0/12.9"

ATTEMPTS = (
    # The linear attention of a hybrid on Blackwell.
    Attempt("linear-decode-dtype", "sglang/linear-attn-decode-needs-bf16",
            "--linear-attn-backend flashinfer", "hybrid"),
    Attempt("linear-prefill-cuda", "sglang/linear-attn-prefill-needs-cuda13",
            "--linear-attn-prefill-backend flashinfer", "hybrid"),
    Attempt("linear-flashkda-decode", "sglang/flashkda-is-prefill-only",
            "--linear-attn-decode-backend flashkda", "hybrid"),
    Attempt("no-buffer-overlap", "sglang/mamba-no-buffer-overlap",
            "--mamba-radix-cache-strategy no_buffer", "hybrid"),
    Attempt("extra-buffer-unsupported", "sglang/mamba-extra-buffer-unsupported",
            "--mamba-radix-cache-strategy extra_buffer --linear-attn-backend flashinfer --mamba-ssm-dtype bfloat16",
            "hybrid", BLACKWELL_13),
    Attempt("rounding-dtype", "sglang/mamba-rounding-needs-fp16",
            "--enable-mamba-cache-stochastic-rounding", "hybrid"),
    Attempt("philox-negative", "sglang/mamba-state-numbers", "--mamba-cache-philox-rounds -1", "hybrid"),
    # Attention backends against the GPU and the model.
    Attempt("trtllm-mha-hopper", "sglang/trtllm-mha-prefill-arch", "--attention-backend trtllm_mha", gpu=HOPPER),
    Attempt("trtllm-mha-ampere-decode", "sglang/trtllm-mha-decode-arch",
            "--decode-attention-backend trtllm_mha --prefill-attention-backend flashinfer", gpu=AMPERE),
    Attempt("trtllm-mla-hopper", "sglang/trtllm-mla-needs-blackwell", "--attention-backend trtllm_mla", gpu=HOPPER),
    Attempt("trtllm-mla-kv", "sglang/trtllm-mla-kv-dtype",
            "--attention-backend trtllm_mla --kv-cache-dtype fp8_e5m2"),
    Attempt("cutedsl-mla-hopper", "sglang/cutedsl-mla-needs-sm100",
            "--decode-attention-backend cutedsl_mla --prefill-attention-backend flashinfer", gpu=HOPPER),
    Attempt("gpt-oss-backend", "sglang/gpt-oss-backend", "--attention-backend flashinfer", "gpt-oss"),
    Attempt("olmo3-flashinfer", "sglang/olmo3-flashinfer", "--attention-backend flashinfer", "olmo3"),
    Attempt("deterministic-backend", "sglang/deterministic-backend",
            "--enable-deterministic-inference --attention-backend trtllm_mha"),
    Attempt("kv4-backend", "sglang/kv4-mha-backend", "--kv-cache-dtype fp4_e2m1 --attention-backend flashinfer"),
    # Experts and quantization.
    Attempt("moe-cutlass-fp8", "sglang/moe-cutlass-quantization",
            "--moe-runner-backend flashinfer_cutlass --quantization fp8", "hybrid"),
    # Parallel layouts.
    Attempt("world-across-nodes", "sglang/par-nnodes", "--tp-size 3 --nnodes 2 --dist-init-addr 10.0.0.1:20000"),
    Attempt("base-gpu-negative", "sglang/par-base-gpu-id", "--base-gpu-id -1"),
    Attempt("pipeline-speculation", "sglang/par-pipeline-overlap",
            "--pp-size 2 --speculative-algorithm NGRAM"),
    Attempt("dp-attention-divides", "sglang/par-dp-divides-tp", "--tp-size 4 --dp-size 3 --enable-dp-attention"),
    Attempt("prefill-radix-cache", "sglang/pd-decode-radix-cache",
            "--disaggregation-mode decode --disaggregation-decode-enable-radix-cache "
            "--disaggregation-transfer-backend fake"),
    Attempt("prefill-fake", "sglang/pd-transfer-backend",
            "--disaggregation-mode prefill --disaggregation-transfer-backend fake"),
    Attempt("infiniband", "sglang/infiniband-devices",
            "--disaggregation-mode prefill --disaggregation-ib-device mlx5_9"),
    # Serving.
    Attempt("tls-key-alone", "sglang/tls-pair-incomplete", "--ssl-keyfile /etc/tls/tls.key"),
    Attempt("tls-cert-alone", "sglang/tls-pair-incomplete", "--ssl-certfile /etc/tls/tls.crt"),
    Attempt("tls-ca-alone", "sglang/tls-pair-incomplete", "--ssl-ca-certs /etc/tls/ca.crt"),
    Attempt("tls-file-missing", "sglang/tls-file-missing",
            "--ssl-keyfile /etc/tls/tls.key --ssl-certfile /etc/tls/tls.crt"),
    Attempt("served-name-colon", "sglang/served-name-colon", "--served-model-name qwen3:32b"),
    Attempt("tokenizer-batching", "sglang/tokenizer-batching-twice",
            "--enable-tokenizer-batch-encode --enable-dynamic-batch-tokenizer"),
    Attempt("encoder-and-language", "sglang/encoder-language-role", "--encoder-only --language-only"),
    Attempt("metrics-directory", "sglang/metrics-export-directory", "--export-metrics-to-file"),
    Attempt("buckets-rule", "sglang/metrics-bucket-rule", "--prompt-tokens-buckets linear 1 2"),
    Attempt("buckets-tse", "sglang/metrics-bucket-rule", "--generation-tokens-buckets tse 1000 2"),
    Attempt("modality", "sglang/mm-data-limit-modality", '--limit-mm-data-per-request {"picture":1}'),
    Attempt("gc-threshold", "sglang/gc-threshold-count", "--gc-threshold 1 2 3 4"),
    # Caches.
    Attempt("hicache-without-radix", "sglang/hicache-with-radix-off",
            "--enable-hierarchical-cache --disable-radix-cache"),
    Attempt("session-policy", "sglang/session-radix-policy", "--enable-session-radix-cache"),
    Attempt("swa-ratio", "sglang/swa-cache-ratio", "--swa-full-tokens-ratio 1.5"),
    Attempt("unified-memory-pd", "sglang/unified-memory-combination",
            "--enable-unified-memory --disaggregation-mode prefill --attention-backend triton"),
    Attempt("prefill-only-embedding", "sglang/prefill-only-without-kv", "--prefill-only-disable-kv-cache"),
    Attempt("hisparse-dense", "sglang/hisparse-requirement", "--enable-hisparse"),
    Attempt("offload-prefill", "sglang/decode-offload-kvcache",
            "--disaggregation-mode prefill --disaggregation-decode-enable-offload-kvcache"),
    Attempt("chunk-page", "sglang/chunk-not-multiple-of-page", "--chunked-prefill-size 1000 --page-size 64"),
    # Scheduling.
    Attempt("padding-compile", "sglang/graph-padding-with-compile",
            "--disable-cuda-graph-padding --enable-torch-compile"),
    Attempt("pdmux-chunks", "sglang/pd-multiplexing-combination", "--enable-pdmux"),
    Attempt("priority-policy", "sglang/priority-needs-policy", "--enable-priority-scheduling --schedule-policy lpm"),
    Attempt("conservativeness", "sglang/conservativeness-negative", "--schedule-conservativeness -1"),
    Attempt("workers", "sglang/mm-worker-counts", "--tokenizer-worker-num 0"),
    Attempt("mindspore", "sglang/mindspore-needs-npu", "--model-impl mindspore"),
    Attempt("comm-quantization", "sglang/comm-quantization", "--enable-quant-communications"),
    # LoRA.
    Attempt("lora-shape", "sglang/lora-shape-unknown", "--enable-lora"),
    Attempt("lora-loaded", "sglang/lora-numbers",
            "--enable-lora --max-lora-rank 16 --lora-target-modules all --max-loras-per-batch 8 --max-loaded-loras 4"),
    Attempt("lora-all-and-more", "sglang/lora-all-alone",
            "--enable-lora --max-lora-rank 16 --lora-target-modules all q_proj"),
    Attempt("lora-speculation", "sglang/lora-with-speculation",
            "--enable-lora --max-lora-rank 16 --lora-target-modules all --speculative-algorithm EAGLE "
            "--speculative-draft-model-path MODEL --speculative-num-steps 3 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 4"),
    # The command line itself.
    Attempt("flash-attn", "sglang/attention-backend-flash-attn", "--attention-backend flash_attn"),
    Attempt("flag-unknown", "sglang/argument-unknown", "--mamba-radix-cache-stategy auto"),
    Attempt("flag-of-vllm", "sglang/vllm-max-model-len-flag", "--max-model-len 8192"),
)  # fmt: skip

CHILD = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import stubs
stubs.install()
from sglang.srt.server_args import prepare_server_args
for attempt in json.load(sys.stdin):
    sys.stderr.flush()
    if not (child := os.fork()):
        out = os.open(attempt["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = ["sglang", *attempt["argv"]]
        prepare_server_args(attempt["argv"]).check_server_args()  # as `launch_server` and the engine do
        print("NOT REFUSED", file=sys.stderr, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def provoke(python: str, attempts: Iterable[Attempt], into: Path) -> None:
    """Run all attempts, one process for each kind of GPU, and leave what each printed in `into`."""
    models = into / "models"
    for name, config in MODELS.items():
        (models / name).mkdir(parents=True, exist_ok=True)
        (models / name / "config.json").write_text(json.dumps(config))
    by_gpu: dict[str, list[dict[str, object]]] = {}
    for one in attempts:
        model = str(models / one.model)
        words = [word.replace("MODEL", model) for word in one.arguments.split()]
        argv = ["--model-path", model, "--load-format", "dummy", *words]
        by_gpu.setdefault(one.gpu, []).append({"argv": argv, "out": str(into / f"{one.name}.log")})
    for gpu, work in by_gpu.items():
        capability, cuda = gpu.split("/")
        environment = os.environ | {
            "FAKE_CAPABILITY": capability, "FAKE_CUDA": cuda, "NO_COLOR": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        command = [python, "-c", CHILD, str(HERE)]
        subprocess.run(command, input=json.dumps(work), text=True, env=environment, check=False)


_NOISE = re.compile(
    r"^(?:.*Warning: .*|\[transformers\] .*|Could not import transformers.*|  warnings?\.warn.*)$\n?",
    re.M,
)


def cleaned(text: str, *, into: Path) -> str:
    """What a container would have printed: the image's paths, no warnings about this machine's libraries."""
    text = re.sub(r"/\S*?/site-packages(?=/sglang/)", CONTAINER, text)
    text = re.sub(r"/\S*?/site-packages", "/usr/local/lib/python3.11/site-packages", text)
    text = re.sub(r"/\S*?/lib/python3\.11(?=/\w+\.py|/json/|/concurrent/)", "/usr/lib/python3.11", text)
    text = text.replace(str(into / "models"), "/models")
    text = text.replace('File "<string>"', f'File "{CONTAINER}/sglang/launch_server.py"')
    return _NOISE.sub("", text)


def main(python: str) -> int:
    KEPT.mkdir(parents=True, exist_ok=True)
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder)
        provoke(python, ATTEMPTS, into)
        for one in ATTEMPTS:
            printed = into / f"{one.name}.log"
            text = cleaned(printed.read_text("utf-8", "replace"), into=into) if printed.exists() else "NOT RUN"
            lines = text.rstrip().splitlines() or [""]
            if "NOT REFUSED" in text or not re.search(r"(?:Error|error)(?:: |$)", text, re.M):
                print(f"{one.name}: not refused: {lines[-1][:160]}")
                (KEPT / f"{one.name}.log").unlink(missing_ok=True)
                continue
            refused += 1
            (KEPT / f"{one.name}.log").write_text(text, "utf-8")
            print(f"{one.name}: {lines[-1][:160]}")
    print(f"{refused} of {len(ATTEMPTS)} refused")
    return 0 if refused else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
