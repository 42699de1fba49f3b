#include "dovetail/mx/quantize.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/cuda_kernels.h"
#include "dovetail/mx/dequantize.h"
#include "dovetail/mx/quantize_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

/// Codes of this size or more leave the L2 cache before they are read.
constexpr int64_t kStreamedBytes = int64_t{4} << 20;

std::optional<Source> source_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Source::kFloat32;
    case at::kBFloat16:
      return Source::kBFloat16;
    case at::kHalf:
      return Source::kFloat16;
    default:
      return std::nullopt;
  }
}

MXTensor empty_codes(at::IntArrayRef sizes, at::Device device, Format format,
                     Orientation orientation) {
  const auto bytes = at::TensorOptions(at::kByte).device(device);
  return {at::empty(sizes, bytes), at::empty(scale_sizes(sizes, orientation), bytes), format,
          orientation};
}

/// Scales of copies of values. Nobody reads them; they must live until the kernel has written them.
using UnreadScales = std::vector<at::Tensor>;

QuantizeTarget target_of(const MXTensor& codes, const at::Tensor& values, Orientation orientation,
                         UnreadScales& unread) {
  if (codes.defined())
    return {.codes = codes.codes().mutable_data_ptr<uint8_t>(),
            .scales = codes.scales().mutable_data_ptr<uint8_t>()};
  unread.push_back(
      at::empty(scale_sizes(values.sizes(), orientation), values.options().dtype(at::kByte)));
  return {.scales = unread.back().mutable_data_ptr<uint8_t>(), .values = values.mutable_data_ptr()};
}
QuantizeTarget row_target(const Quantized& out, UnreadScales& unread) {
  return target_of(out.row, out.row_values, Orientation::kRow, unread);
}
QuantizeTarget column_target(const Quantized& out, UnreadScales& unread) {
  return target_of(out.column, out.column_values, Orientation::kColumn, unread);
}
QuantizeTarget square_target(const Quantized& out, UnreadScales& unread) {
  return target_of(out.square, out.square_values, Orientation::kSquare, unread);
}

/// Describes x as a matrix, without its address. For a row copy, blocks are along its rows; for a
/// column copy, along its columns. Both at once require a matrix or a vector. A vector has one row
/// and `cols` column blocks of one element.
QuantizeProblem problem_of(at::IntArrayRef sizes, at::ScalarType dtype, const QuantizeSpec& spec,
                           Orientation orientation) {
  const ElementSpec& element = element_spec(spec.format);
  const int64_t count = c10::multiply_integers(sizes);
  const int64_t rows =
      orientation == Orientation::kRow ? count / std::max<int64_t>(sizes.back(), 1) : sizes.front();
  return {.rows = rows,
          .cols = count / std::max<int64_t>(rows, 1),
          .source = *source_of(dtype),
          .spec = element,
          .addend = scale_addend(element, spec.scale_mode),
          .saturate_non_finite = spec.non_finite == NonFinite::kSaturate,
          .stochastic = spec.rounding == Rounding::kStochastic,
          .by_codec = !ops::kernel_enabled(ops::Kernel::kQuantize),
          .seed = spec.seed,
          .stream = count >= kStreamedBytes};
}

bool wants_row(const QuantizeSpec& spec) {
  return spec.copies == Copies::kRow || spec.copies == Copies::kRowAndColumn;
}
bool wants_column(const QuantizeSpec& spec) {
  return spec.copies == Copies::kColumn || spec.copies == Copies::kRowAndColumn;
}

void check_copy(const MXTensor& copy, const at::Tensor& x, const QuantizeSpec& spec,
                Orientation orientation) {
  user_check(copy.defined() && copy.sizes() == x.sizes() && copy.format() == spec.format &&
                 copy.orientation() == orientation && copy.codes().device() == x.device(),
             "mx::quantize_into: x is {}, but its {} copy is {}, {}", ops::describe(x),
             name(orientation), ops::describe(copy.codes()), name(copy.format()));
}

void check_input(const at::Tensor& x, const QuantizeSpec& spec) {
  user_check(x.defined(), "mx::quantize: x is undefined");
  user_check(source_of(x.scalar_type()).has_value(),
             "mx::quantize: x must be float32, bfloat16 or float16, but is {}; convert it first",
             ops::describe(x));
  const bool values = spec.row_values || spec.column_values || spec.square_values;
  user_check(!values || x.scalar_type() != at::kHalf,
             "mx::quantize: values are float32 or bfloat16, but x is {}", ops::describe(x));
  user_check(x.dim() >= 1, "mx::quantize: x must have a dimension to lay blocks along, but is {}",
             ops::describe(x));
  user_check(x.is_cpu() || x.is_cuda() || x.is_meta(),
             "mx::quantize: x must be on the CPU or a GPU, but is {}", ops::describe(x));
}

const CudaKernels& gpu_kernels() {
  user_check(ops::kernel_enabled(ops::Kernel::kQuantize),
             "mx: mx_quantize is switched off, and a GPU has no other way");
  const CudaKernels* kernels = cuda_kernels();
  user_check(kernels != nullptr, "mx: this build has no kernels for the GPU: there was no nvcc");
  return *kernels;
}

/// Runs a problem. Statistics are empty if a GPU was asked not to count.
QuantizeCounts run(const QuantizeProblem& problem, const at::Tensor& x, bool count) {
  if (x.is_cpu()) return quantize_blocks(problem);
  const c10::DeviceGuard guard(x.device());
  QuantizeCounts counts;
  gpu_kernels().quantize(problem, count ? &counts : nullptr);
  return counts;
}

Quantized empty_copies(at::IntArrayRef sizes, const at::TensorOptions& options,
                       const QuantizeSpec& spec) {
  Quantized out;
  const auto make = [&](bool wanted, bool as_values, Orientation orientation, MXTensor& codes,
                        at::Tensor& numbers) {
    if (wanted && as_values) numbers = at::empty(sizes, options);
    if (wanted && !as_values)
      codes = empty_codes(sizes, options.device(), spec.format, orientation);
  };
  make(wants_row(spec), spec.row_values, Orientation::kRow, out.row, out.row_values);
  make(wants_column(spec), spec.column_values, Orientation::kColumn, out.column, out.column_values);
  make(spec.copies == Copies::kSquare, spec.square_values, Orientation::kSquare, out.square,
       out.square_values);
  return out;
}

void set_statistics(const QuantizeCounts& counts, Quantized& out) {
  out.row_statistics = counts.row;
  out.column_statistics = counts.column;
  out.square_statistics = counts.square;
}

/// Quantizes into existing memory that fits.
void quantize_into_checked(const at::Tensor& x_in, const QuantizeSpec& spec, Quantized& out) {
  const bool row = wants_row(spec), column = wants_column(spec);
  set_statistics({}, out);
  if (x_in.is_meta() || x_in.numel() == 0) return;

  const TraceSpan span("dovetail::mx_quantize");
  ops::simd_level();  // DOVETAIL_SIMD takes effect before the first kernel runs
  const at::Tensor x = x_in.detach().contiguous();
  // Only a matrix has both its row blocks and its column blocks in one view.
  const bool together = !(row && column) || x.dim() == 2;
  UnreadScales unread;
  const auto problem_along = [&](Orientation orientation) {
    QuantizeProblem problem = problem_of(x.sizes(), x.scalar_type(), spec, orientation);
    problem.x = x.const_data_ptr();
    return problem;
  };
  QuantizeProblem problem = problem_along(row ? Orientation::kRow : Orientation::kColumn);
  if (row) problem.row = row_target(out, unread);
  if (column && together) problem.column = column_target(out, unread);
  if (!row && !column) problem.square = square_target(out, unread);
  QuantizeCounts counts = run(problem, x, spec.count);
  if (!together) {
    problem = problem_along(Orientation::kColumn);
    problem.column = column_target(out, unread);
    counts.add(run(problem, x, spec.count));
  }
  set_statistics(counts, out);
}

}  // namespace

Quantized quantize(const at::Tensor& x, const QuantizeSpec& spec) {
  check_input(x, spec);
  Quantized out = empty_copies(
      x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous).requires_grad(false),
      spec);
  quantize_into_checked(x, spec, out);
  return out;
}

bool fits_vectors(const QuantizeProblem& p) {
  const auto aligned = [](const void* memory, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
  };
  bool fits = !p.stochastic && !p.saturate_non_finite && p.cols % kBlock == 0 && aligned(p.x, 16);
  for (const QuantizeTarget* target : {&p.row, &p.column, &p.square})
    fits = fits && aligned(target->codes, 8) && aligned(target->values, 16);
  return fits && !(p.row.codes && p.column.values);
}

bool fuses_activation(const QuantizeProblem& p) {
  const bool one = (p.row.values != nullptr) != (p.column.values != nullptr) &&
                   p.row.codes == nullptr && p.column.codes == nullptr && !p.square.wanted();
  return fits_vectors(p) && one && p.source == Source::kBFloat16 && !p.spec.twos_complement;
}

Quantized quantize(const ops::MadeRows& x, const QuantizeSpec& spec) {
  DOVETAIL_CHECK(x.sizes.size() == 2 && (x.dtype == at::kFloat || x.dtype == at::kBFloat16),
                 "{} sizes of {}", x.sizes.size(), c10::toString(x.dtype));
  Quantized out = empty_copies(x.sizes, at::TensorOptions(x.dtype).device(x.device()), spec);
  const TraceSpan span("dovetail::mx_quantize");
  ops::simd_level();
  QuantizeProblem problem = problem_of(x.sizes, x.dtype, spec, Orientation::kRow);
  UnreadScales unread;
  if (wants_row(spec)) problem.row = row_target(out, unread);
  if (wants_column(spec)) problem.column = column_target(out, unread);
  if (spec.copies == Copies::kSquare) problem.square = square_target(out, unread);
  if (!x.on_gpu) {
    set_statistics(quantize_blocks(problem, x.make), out);
    return out;
  }
  problem.x = x.on_gpu->x.const_data_ptr();
  at::Tensor whole;
  if (!spec.count && fuses_activation(problem)) {
    problem.activation = x.on_gpu->activation;
  } else {
    whole = x.on_gpu->whole();
    problem.x = whole.const_data_ptr();
  }
  set_statistics(run(problem, x.on_gpu->x, spec.count), out);
  return out;
}

namespace {

/// Matrix of a group: its memory, or the function that makes its rows.
struct GroupSource {
  int64_t rows = 0;
  const void* x = nullptr;
  RowMaker make = {};
};

/// Returns rows of `values` as a target. Nobody reads `scales`. Both may be undefined.
QuantizeTarget group_target(const at::Tensor& values, int64_t row, const at::Tensor& scales,
                            int64_t scale_row) {
  if (!values.defined()) return {};
  return {.scales = scales.mutable_data_ptr<uint8_t>() + scale_row * scales.size(1),
          .values = static_cast<std::byte*>(values.mutable_data_ptr()) +
                    row * values.size(1) * values.element_size()};
}

QuantizedGroup quantize_sources(std::span<const GroupSource> sources, int64_t cols,
                                at::ScalarType dtype, const QuantizeSpec& spec,
                                std::span<const uint64_t> seeds) {
  DOVETAIL_CHECK(spec.row_values && spec.column_values && spec.square_values,
                 "codes of {} matrices", sources.size());
  const TraceSpan span("dovetail::mx_quantize_group");
  ops::simd_level();
  int64_t rows = 0;
  for (const GroupSource& source : sources) rows += source.rows;
  const bool row = wants_row(spec), column = wants_column(spec),
             square = spec.copies == Copies::kSquare;
  // An upper bound for the blocks along the rows of all matrices.
  const int64_t strips = rows / kBlock + std::ssize(sources), across = (cols + kBlock - 1) / kBlock;
  const auto memory = [](bool wanted, int64_t height, int64_t width, at::ScalarType type) {
    return wanted ? at::empty({height, width}, type) : at::Tensor();
  };
  QuantizedGroup out{.row_values = memory(row, rows, cols, dtype),
                     .column_values = memory(column, rows, cols, dtype),
                     .square_values = memory(square, rows, cols, dtype),
                     .statistics = {}};
  const at::Tensor row_scales = memory(row, rows, across, at::kByte),
                   column_scales = memory(column, strips, cols, at::kByte),
                   square_scales = memory(square, strips, across, at::kByte);
  std::vector<QuantizeCall> calls;
  int64_t first = 0, strip = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const GroupSource& source = sources[i];
    QuantizeProblem problem = problem_of({source.rows, cols}, dtype, spec, Orientation::kColumn);
    problem.x = source.x;
    problem.seed = seeds[i];
    problem.row = group_target(out.row_values, first, row_scales, first);
    problem.column = group_target(out.column_values, first, column_scales, strip);
    problem.square = group_target(out.square_values, first, square_scales, strip);
    calls.push_back({.problem = problem, .make = source.make});
    first += source.rows;
    strip += (source.rows + kBlock - 1) / kBlock;
  }
  for (const QuantizeCounts& counts : quantize_blocks(calls))
    out.statistics.push_back(row ? counts.row : square ? counts.square : counts.column);
  return out;
}

}  // namespace

QuantizedGroup quantize_group(std::span<const at::Tensor> xs, const QuantizeSpec& spec,
                              std::span<const uint64_t> seeds) {
  std::vector<at::Tensor> contiguous;  // lives as long as the addresses in `sources`
  std::vector<GroupSource> sources;
  for (const at::Tensor& x : xs) {
    contiguous.push_back(x.detach().contiguous());
    sources.push_back({.rows = x.size(0), .x = contiguous.back().const_data_ptr()});
  }
  return quantize_sources(sources, xs[0].size(1), xs[0].scalar_type(), spec, seeds);
}

QuantizedGroup quantize_group(std::span<const ops::MadeRows> xs, const QuantizeSpec& spec,
                              std::span<const uint64_t> seeds) {
  std::vector<GroupSource> sources;
  for (const ops::MadeRows& x : xs) sources.push_back({.rows = x.sizes[0], .make = x.make});
  return quantize_sources(sources, xs[0].sizes[1], xs[0].dtype, spec, seeds);
}

void quantize_into(const at::Tensor& x, const QuantizeSpec& spec, Quantized& out) {
  check_input(x, spec);
  if (wants_row(spec)) check_copy(out.row, x, spec, Orientation::kRow);
  if (wants_column(spec)) check_copy(out.column, x, spec, Orientation::kColumn);
  if (spec.copies == Copies::kSquare) check_copy(out.square, x, spec, Orientation::kSquare);
  quantize_into_checked(x, spec, out);
}

at::Tensor dequantize(const MXTensor& x, at::ScalarType dtype) {
  user_check(x.defined(), "mx::dequantize: the tensor is undefined");
  user_check(dtype == at::kFloat || dtype == at::kBFloat16,
             "mx::dequantize: a microscaling tensor becomes float32 or bfloat16, not {}",
             c10::toString(dtype));
  at::Tensor y = at::empty(x.sizes(), x.codes().options().dtype(dtype));
  dequantize_into(x, y);
  return y;
}

void dequantize_into(const MXTensor& x, const at::Tensor& y) {
  const at::ScalarType dtype = y.scalar_type();
  const at::Device device = x.codes().device();
  user_check(device.is_cpu() || device.is_cuda() || device.is_meta(),
             "mx::dequantize: codes must be on the CPU or a GPU, but are {}",
             ops::describe(x.codes()));
  user_check((dtype == at::kFloat || dtype == at::kBFloat16) && y.sizes() == x.sizes() &&
                 y.is_contiguous() && y.device() == device,
             "mx::dequantize_into: the numbers of codes that are {} do not go into {}",
             ops::describe(x.codes()), ops::describe(y));
  const TraceSpan span("dovetail::mx_dequantize");
  ops::simd_level();
  if (y.is_meta() || y.numel() == 0) return;
  const bool along_rows = x.orientation() == Orientation::kRow;
  const int64_t rows = along_rows ? y.numel() / y.size(-1) : y.size(0), cols = y.numel() / rows;
  const DequantizeProblem problem{
      .rows = rows,
      .cols = cols,
      .row_block = along_rows ? 1 : kBlock,
      .col_block = x.orientation() == Orientation::kColumn ? 1 : kBlock,
      .codes = x.codes().const_data_ptr<uint8_t>(),
      .scales = x.scales().const_data_ptr<uint8_t>(),
      .spec = element_spec(x.format()),
  };
  const c10::OptionalDeviceGuard guard(device.is_cuda() ? std::optional(device) : std::nullopt);
  if (dtype == at::kFloat) {
    auto* to = y.mutable_data_ptr<float>();
    device.is_cuda() ? gpu_kernels().dequantize_to_float32(problem, to)
                     : dequantize_blocks(problem, to);
  } else {
    auto* to = static_cast<uint16_t*>(y.mutable_data_ptr());
    device.is_cuda() ? gpu_kernels().dequantize_to_bfloat16(problem, to)
                     : dequantize_blocks(problem, to);
  }
}

}  // namespace dovetail::mx
