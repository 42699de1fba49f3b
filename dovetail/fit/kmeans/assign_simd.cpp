#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/fit/kmeans/assign_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "dovetail/fit/kmeans/assign_simd.h"
#include "dovetail/fit/kmeans/nearest_inl.h"
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::fit {
namespace HWY_NAMESPACE {

// Number of vectors of sums that stay in registers while rows are read.
constexpr int kSumVectors = kLanes >= 16 ? 16 : 8;

/// Adds the rows of x that `order` names to sums[0 ..]. Rows are `dim` floats apart. The sums are
/// kVectors vectors of float64, and the last vector has `last` columns.
template <int kVectors, class Ask>
HWY_INLINE void add_columns(const float* x, int64_t dim, const int32_t* order, int64_t rows,
                            int64_t last, double* sums, const Ask& ask) {
  const DoubleTag d;
  const HalfTag half;
  const auto there = hn::FirstN(half, static_cast<size_t>(last));
  // x * 1 + s is s + x, but it runs on the multiply units. The add units are busy with the
  // conversion of x.
  const DoubleVector one = hn::Set(d, 1.0);
  DoubleVector s[kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) s[v] = hn::LoadU(d, sums + v * kDoubles);
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = x + order[i] * dim;
    ask();
#pragma GCC unroll 16
    for (int v = 0; v < kVectors - 1; ++v) s[v] = hn::MulAdd(widen(from + v * kDoubles), one, s[v]);
    const auto tail = hn::MaskedLoad(there, half, from + (kVectors - 1) * kDoubles);
    s[kVectors - 1] = hn::MulAdd(hn::PromoteTo(d, tail), one, s[kVectors - 1]);
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) hn::StoreU(s[v], d, sums + v * kDoubles);
}

/// Calls `body` with the number of vectors, 1 to kSumVectors, as a constant.
template <class Body, int... kVectors>
HWY_INLINE void with_vectors(int64_t count, const Body& body,
                             std::integer_sequence<int, kVectors...>) {
  ((count == kVectors + 1 && (body(std::integral_constant<int, kVectors + 1>()), true)) || ...);
}

/// Adds the rows of one centre, in their order, to sums (D). Calls ask() once for each row.
template <class Ask>
HWY_INLINE void add_run(const float* x, int64_t dim, const int32_t* order, int64_t rows,
                        double* sums, const Ask& ask) {
  const auto none = [] {};
  int64_t column = 0;
  for (; column + kSumVectors * kDoubles < dim; column += kSumVectors * kDoubles)
    add_columns<kSumVectors>(x + column, dim, order, rows, kDoubles, sums + column, none);
  const int64_t vectors = (dim - column + kDoubles - 1) / kDoubles;
  with_vectors(
      vectors,
      [&](auto count) HWY_ATTR {
        add_columns<count()>(x + column, dim, order, rows, dim - column - (vectors - 1) * kDoubles,
                             sums + column, ask);
      },
      std::make_integer_sequence<int, kSumVectors>());
}

/// Returns the rows per block. A block is read from memory for the labels, and from a cache for the
/// sums.
int64_t block_rows(int64_t dim) {
  constexpr int64_t kBlockFloats = 8192;
  return std::clamp(kBlockFloats / dim / kTileColumns * kTileColumns, kTileColumns, int64_t{256});
}

int64_t assign_to_many(const AssignProblem& p) {
  const Centres centres(p, /*as_rows=*/false);
  const auto rows = hwy::AllocateAligned<float>(static_cast<size_t>((p.dim + 2) * kTileColumns));
  const int64_t block = block_rows(p.dim);
  NearestRows nearest;
  int64_t changed = 0;
  for (int64_t begin = 0; begin < p.rows; begin += block) {
    const int64_t end = std::min(begin + block, p.rows);
    for (int64_t i = begin; i < end; i += kTileColumns)
      changed += label_of_many(p, centres, i, std::min(kTileColumns, end - i), rows.get(), nearest);
    const int32_t first = 0;
    for (int64_t i = begin; i < end; ++i)
      add_run(p.x + i * p.dim, p.dim, &first, 1, p.sums + p.label[i] * p.sums_stride, [] {});
  }
  return changed;
}

#if HWY_TARGET != HWY_SCALAR
int64_t assign_to_few(const AssignProblem& p) {
  const Centres centres(p, /*as_rows=*/true);
  const int64_t block = block_rows(p.dim);
  const auto label_rows =
      label_kernel_of(p.num_centres, std::make_integer_sequence<int, kFewCentres>());
  RowsByLabel by_label;
  int64_t changed = 0;
  for (int64_t begin = 0; begin < p.rows; begin += block) {
    const int64_t count = std::min(block, p.rows - begin);
    const float* x = p.x + begin * p.dim;
    std::fill_n(by_label.count, p.num_centres, 0);
    ReadAhead ahead{x + block * p.dim, x + 2 * block * p.dim};
    for (int64_t i = 0; i < count; i += kLanes)
      changed += label_rows(p, centres, begin + i, std::min(kLanes, count - i), i, by_label, ahead);
    const int lines = ahead.lines_for_each(count);
    for (int64_t c = 0; c < p.num_centres; ++c) {
      p.counts[c] += by_label.count[c];
      add_run(x, p.dim, by_label.row[c], by_label.count[c], p.sums + c * p.sums_stride,
              [&] HWY_ATTR { ahead.ask(lines); });
    }
  }
  return changed;
}
#endif

int64_t AssignRows(const AssignProblem& p) {
#if HWY_TARGET != HWY_SCALAR
  if (p.num_centres <= kFewCentres && p.dim >= kLanes) return assign_to_few(p);
#endif
  return assign_to_many(p);
}

double NormsFrom(const float* x, const float* point, int64_t rows, int64_t dim, float* norm) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const double square = squared_distance(x + i * dim, point, dim);
    sum += square;
    if (norm) norm[i] = static_cast<float>(std::sqrt(square) * (1 + 0x1p-22));
  }
  return sum;
}

double SquaredDistances(const float* x, const double* centres, const int32_t* label, int64_t rows,
                        int64_t dim, double* squares) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    squares[i] = squared_distance(x + i * dim, centres + label[i] * dim, dim);
    sum += squares[i];
  }
  return sum;
}

void AddPotentials(const float* x, const double* points, int64_t count, int64_t rows, int64_t dim,
                   const double* closest, double* potentials) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < count; ++j)
      potentials[j] += std::min(closest[i], squared_distance(x + i * dim, points + j * dim, dim));
}

double IncludePoints(const float* x, const double* points, int64_t count, int64_t rows, int64_t dim,
                     double* closest) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < count; ++j)
      closest[i] = std::min(closest[i], squared_distance(x + i * dim, points + j * dim, dim));
    sum += closest[i];
  }
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::fit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::fit {

HWY_EXPORT(AssignRows);
HWY_EXPORT(NormsFrom);
HWY_EXPORT(SquaredDistances);
HWY_EXPORT(AddPotentials);
HWY_EXPORT(IncludePoints);

int64_t assign_rows(const AssignProblem& problem) {
  return HWY_DYNAMIC_DISPATCH(AssignRows)(problem);
}

double norms_from(const float* x, const float* point, int64_t rows, int64_t dim, float* norm) {
  return HWY_DYNAMIC_DISPATCH(NormsFrom)(x, point, rows, dim, norm);
}

double squared_distances(const float* x, const double* centres, const int32_t* label, int64_t rows,
                         int64_t dim, double* squares) {
  return HWY_DYNAMIC_DISPATCH(SquaredDistances)(x, centres, label, rows, dim, squares);
}

void add_potentials(const float* x, const double* points, int64_t count, int64_t rows, int64_t dim,
                    const double* closest, double* potentials) {
  HWY_DYNAMIC_DISPATCH(AddPotentials)(x, points, count, rows, dim, closest, potentials);
}

double include_points(const float* x, const double* points, int64_t count, int64_t rows,
                      int64_t dim, double* closest) {
  return HWY_DYNAMIC_DISPATCH(IncludePoints)(x, points, count, rows, dim, closest);
}

}  // namespace dovetail::fit
#endif
