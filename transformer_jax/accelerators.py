"""The table of accelerators: what their data sheets say, and how XLA describes a GPU that is not here."""

from typing import NamedTuple


class Accelerator(NamedTuple):
    """A kind of device. TFLOP/s are of dense matrix products (data sheets often show twice the number, with sparsity).

    The last fields are of those that programs can be compiled for. Memory is in bytes, a gigabyte is 10^9 of them.
    """

    kind: str  # `jax.Device.device_kind`
    bfloat16: float | None  # on tensor cores, added up in float32; None if not given
    tf32: float | None
    float32: float | None  # without tensor cores
    source: str
    cores: int = 0  # of a TPU chip, whose figures these are; a JAX device may be one core or the chip
    name: str = ""  # in --compile-for
    memory: float = 0.0  # of one JAX device
    bandwidth: float = 0.0
    share: float = 1.0  # of the chip that one JAX device is, where programs are compiled for it
    gpu: str = ""  # the rest of XLA's description of a GPU

    def teraflops(self, dtype: str, precision: str) -> tuple[float | None, str]:
        """TFLOP/s of products of this type at `model.matmul_precision`, and what they are computed in."""
        if dtype == "bfloat16":
            return self.bfloat16, "bfloat16"
        if self.cores:  # a TPU multiplies in bfloat16: in one pass, or in several, for which there is no figure
            in_passes = f"float32 at {precision} precision"
            return (self.bfloat16, "bfloat16, in one pass") if precision == "default" else (None, in_passes)
        if precision != "highest" and self.tf32 is not None:
            return self.tf32, "TF32"
        return self.float32, "float32"


# XLA's description of a GPU (GpuTargetConfigProto): what all of these have, then what differs. From Hopper on, XLA also
# uses features of a single architecture. From openxla/xla, xla/backends/gpu/target_config/specs/, as are memory and
# bandwidth of these GPUs.
GPU = (
    'platform_name: "CUDA"\ndnn_version_info {{ major: 9 minor: 10 }}\ndevice_description_str: "{chip.kind}"\n'
    "gpu_device_info {{ memory_bandwidth: {chip.bandwidth} device_memory_size: {chip.memory} {chip.gpu}\n"
    "threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 shared_memory_per_block: 49152 "
    "block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 registers_per_core_limit: 65536 "
    "registers_per_block_limit: 65536 }}\n"
)
A100 = (
    "core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 l2_cache_size: 41943040 shared_memory_per_core: 167936 "
    "shared_memory_per_block_optin: 166912 cuda_compute_capability { major: 8 }"
)
H100 = (
    "core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 l2_cache_size: 52428800 shared_memory_per_core: 233472 "
    "shared_memory_per_block_optin: 232448 "
    "cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }"
)
B200 = (
    "core_count: 148 fpus_per_core: 128 clock_rate_ghz: 1.965 l2_cache_size: 132644864 shared_memory_per_core: 233472 "
    "shared_memory_per_block_optin: 232448 "
    "cuda_compute_capability { major: 10 feature_extension: ACCELERATED_FEATURES }"
)

# By `kind`: of GPUs CUDA's names, of TPUs libtpu's (v2 to TPU7x were read from libtpu 0.0.42 itself). No other name is
# guessed: cards with similar names differ twofold (L40 and L40S, A10 and A10G).
ACCELERATORS = {
    chip.kind: chip
    for chip in (
        Accelerator("NVIDIA A100-SXM4-40GB", 312, 156, 19.5, "NVIDIA A100 data sheet"),
        Accelerator("NVIDIA A100-SXM4-80GB", 312, 156, 19.5, "NVIDIA A100 data sheet",
                    name="A100", memory=85_100_068_864, bandwidth=2_039_040_000_000, gpu=A100),
        Accelerator("NVIDIA A100-PCIE-40GB", 312, 156, 19.5, "NVIDIA A100 data sheet"),
        Accelerator("NVIDIA A100 80GB PCIe", 312, 156, 19.5, "NVIDIA A100 data sheet"),
        Accelerator("NVIDIA H100 80GB HBM3", 989, 494, 67, "NVIDIA H100 data sheet, SXM",
                    name="H100", memory=84_942_979_072, bandwidth=3_352_320_000_000, gpu=H100),
        Accelerator("NVIDIA H100 PCIe", 756, 378, 51, "NVIDIA H100 data sheet, PCIe"),
        Accelerator("NVIDIA H100 NVL", 835, 417, 60, "NVIDIA H100 data sheet, NVL"),
        Accelerator("NVIDIA H200", 989, 494, 67, "NVIDIA H200 data sheet, SXM",
                    name="H200", memory=151_397_597_184, bandwidth=4_800_000_000_000, gpu=H100),
        Accelerator("NVIDIA H200 NVL", 835, 417, 60, "NVIDIA H200 data sheet, NVL"),
        Accelerator("NVIDIA GH200 120GB", 989, 494, 67, "NVIDIA GH200 data sheet"),
        Accelerator("NVIDIA GH200 480GB", 989, 494, 67, "NVIDIA GH200 data sheet"),
        Accelerator("NVIDIA B200", 2250, 1100, None, "NVIDIA Blackwell data sheet, HGX B200",
                    name="B200", memory=191_514_411_008, bandwidth=7_672_320_000_000, gpu=B200),
        Accelerator("NVIDIA GB200", 2500, 1250, None, "NVIDIA Blackwell data sheet, GB200"),
        Accelerator("NVIDIA L4", 121, 60, 30.3, "NVIDIA L4 data sheet"),
        Accelerator("NVIDIA L40", 181.05, 90.5, 90.5, "NVIDIA L40 data sheet"),
        Accelerator("NVIDIA L40S", 362.05, 183, 91.6, "NVIDIA L40S data sheet"),
        Accelerator("NVIDIA A10", 125, 62.5, 31.2, "NVIDIA A10 data sheet"),
        Accelerator("NVIDIA A10G", 70, 35, 35, "NVIDIA A10G data sheet (for AWS)"),
        Accelerator("NVIDIA A30", 165, 82, 10.3, "NVIDIA A30 data sheet"),
        Accelerator("NVIDIA A40", 149.7, 74.8, 37.4, "NVIDIA A40 data sheet"),
        Accelerator("NVIDIA GeForce RTX 3090", 71, 35.6, 35.6, "NVIDIA Ampere GA102 whitepaper, appendix A"),
        Accelerator("NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6, "NVIDIA Ada whitepaper, appendix A"),
        Accelerator("Tesla T4", None, None, 8.1, "NVIDIA T4 data sheet"),
        Accelerator("TPU v2", 45, None, None, "cloud.google.com/tpu/docs/v2", cores=2),
        Accelerator("TPU v3", 123, None, None, "cloud.google.com/tpu/docs/v3", cores=2),
        Accelerator("TPU v4", 275, None, None, "cloud.google.com/tpu/docs/v4",
                    cores=2, name="v4", memory=16e9, bandwidth=614e9, share=0.5),
        Accelerator("TPU v5 lite", 197, None, None, "cloud.google.com/tpu/docs/v5e",
                    cores=1, name="v5e", memory=16e9, bandwidth=819e9),
        Accelerator("TPU v5e", 197, None, None, "cloud.google.com/tpu/docs/v5e", cores=1),
        Accelerator("TPU v5", 459, None, None, "cloud.google.com/tpu/docs/v5p",
                    cores=2, name="v5p", memory=95e9, bandwidth=2765e9),
        Accelerator("TPU v5p", 459, None, None, "cloud.google.com/tpu/docs/v5p", cores=2),
        Accelerator("TPU v6 lite", 918, None, None, "cloud.google.com/tpu/docs/v6e",
                    cores=1, name="v6e", memory=32e9, bandwidth=1640e9),
        Accelerator("TPU v6e", 918, None, None, "cloud.google.com/tpu/docs/v6e", cores=1),
        Accelerator("TPU7x", 2307, None, None, "cloud.google.com/tpu/docs/tpu7x",
                    cores=2, name="tpu7x", memory=96e9, bandwidth=3690e9, share=0.5),
    )
}  # fmt: skip
