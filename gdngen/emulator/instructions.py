"""The instruction set that the emulator knows: every name a kernel may call, by its header.

docs/emulator.md lists the same; anything else is refused by name before the compiler sees it.
"""

THREADS = """
__syncthreads __syncthreads_and __syncthreads_or __syncthreads_count __syncwarp
__threadfence __threadfence_block __activemask __ballot_sync __any_sync __all_sync
__shfl_sync __shfl_xor_sync __shfl_up_sync __shfl_down_sync
tl::shfl_sync tl::shfl_xor_sync tl::shfl_up_sync tl::shfl_down_sync
tl::__sync_thread_partial tl::__named_barrier_arrive
"""

MEMORY = """
__ldg atomicAdd atomicMax atomicMin
AtomicAdd AtomicAddRet AtomicAddx2 AtomicMax AtomicMaxRet AtomicMin AtomicMinRet
"""

MATRIX = """
tl::mma_sync tl::DataType
tl::ptx_ldmatrix_x1 tl::ptx_ldmatrix_x2 tl::ptx_ldmatrix_x4
tl::ptx_ldmatrix_x1_trans tl::ptx_ldmatrix_x2_trans tl::ptx_ldmatrix_x4_trans
tl::ptx_stmatrix_m8n8_x1 tl::ptx_stmatrix_m8n8_x2 tl::ptx_stmatrix_m8n8_x4
tl::ptx_stmatrix_m8n8_x1_trans tl::ptx_stmatrix_m8n8_x2_trans tl::ptx_stmatrix_m8n8_x4_trans
"""

PHASES = """
tl::fence_proxy_async tl::fence_barrier_init tl::tl_shuffle_elect
tl::warpgroup_reg_alloc tl::warpgroup_reg_dealloc tl::mbarrier_cp_async_arrive_noinc
"""

BULK = """
tl::prefetch_tma_descriptor tl::tma_load tl::tma_store tl::tma_store_arrive tl::tma_store_wait
"""

WARPGROUP = """
tl::GmmaDescriptor tl::initialize_wgmma_descriptor tl::increase_descriptor_offset
tl::wgmma_ss tl::wgmma_rs tl::warpgroup_arrive tl::warpgroup_commit_batch tl::wait_wgmma
tl::warpgroup_wait tl::warpgroup_fence_operand
"""

COPIES = """
tl::cp_async_gs tl::cp_async_gs_conditional tl::cp_async_commit tl::cp_async_wait
"""

REDUCTIONS = """
tl::AllReduce tl::NamedBarrier tl::SyncThreadsBarrier
tl::SumOp tl::MaxOp tl::MinOp tl::BitAndOp tl::BitOrOp tl::BitXorOp
tl::CumSum1D tl::CumSum2D tl::CumMax1D tl::CumMax2D
tl::warp_reduce_sum tl::warp_reduce_max tl::warp_reduce_min
"""

TYPES = """
make_float1 make_float2 make_float3 make_float4 make_double2 make_int2 make_int4
make_uint1 make_uint2 make_uint4 make_short2 make_short4 make_ushort2 make_ushort4
make_char4 make_uchar4 make_longlong2 make_ulonglong2 make_half2
__pack_half2 __pack_nv_bfloat162 __float22half2_rn __half22float2 __float22bfloat162_rn
__bfloat1622float2 __float2half __float2half_rn __half2float __float2bfloat16
__float2bfloat16_rn __bfloat162float
__float_as_int __float_as_uint __int_as_float __uint_as_float
cutlass::half_t cutlass::bfloat16_t std::numeric_limits
tl::to_uint1 tl::from_uint1 tl::pack_half2 tl::broadcast tl::make_vec
"""

MATH = """
expf exp2f exp10f logf log2f log10f log1pf expm1f powf sqrtf rsqrtf cbrtf fabsf fmaxf fminf fmodf
fmaf sinf cosf tanf sinhf coshf tanhf asinf acosf atanf atan2f erff floorf ceilf roundf truncf rintf
nearbyintf exp exp2 log log2 pow sqrt fabs fmax fmin floor ceil round trunc tanh erf abs max min
isnan isinf isfinite __saturatef
__expf __exp2f __exp10f __logf __log2f __log10f __sinf __cosf __tanf __powf __fdividef
__frcp_rn __frsqrt_rn __fsqrt_rn __fdiv_rn __fadd_rn __fsub_rn __fmul_rn __fmaf_rn
__habs __hneg __hadd __hsub __hmul __hdiv __hfma __hmax __hmin hpow
hexp hexp2 hexp10 hlog hlog2 hlog10 hsin hcos htanh herf hsqrt hrsqrt hrcp hfloor hceil htrunc hrint
tl::fast_rcp tl::fast_max tl::fast_min tl::clamp tl::clamp2 tl::pow_of_int
tl::add2 tl::sub2 tl::mul2 tl::fma2 tl::max2 tl::min2 tl::abs2
"""

SUPPORTED = frozenset(
    " ".join(
        (THREADS, MEMORY, MATRIX, COPIES, PHASES, BULK, WARPGROUP, REDUCTIONS, TYPES, MATH)
    ).split()
)

# Element types of `tl::mma_sync`.
MATRIX_TYPES = frozenset(("kFloat16", "kBFloat16", "kTensorFloat32", "kFloat32"))

# C++'s own words and type names in front of a parenthesis.
WORDS = frozenset("""
    if for while switch return sizeof alignof defined alignas reinterpret_cast static_cast
    const_cast bool char short int long unsigned float double void int8_t int16_t int32_t int64_t
    uint8_t uint16_t uint32_t uint64_t size_t half half_t bfloat16_t uchar ushort uint
    __launch_bounds__ __align__ __attribute__
    """.split())
