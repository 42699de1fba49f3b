#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/embedding/pack/row_format_simd.cpp"
#include "hwy/foreach_target.h"

#include <cstdint>

#include "dovetail/embedding/pack/row_format.h"
#include "dovetail/embedding/pack/row_format_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::embedding {
namespace HWY_NAMESPACE {

void EncodeRow(RowDtype dtype, const float* values, int64_t dim, const RowWords& words, void* to) {
  encode_elements(dtype, values, dim, words, to);
}

void DecodeRow(RowDtype dtype, const void* from, int64_t dim, float* values) {
  with_rows(dtype, [&]<class Row>(Row*) {
    const Row row(from, dim);
    for (int64_t i = 0; i < dim; i += kLanes) store(row.get(i, dim - i), values + i, dim - i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::embedding
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::embedding {

HWY_EXPORT(EncodeRow);
HWY_EXPORT(DecodeRow);

void encode_row(RowDtype dtype, const float* values, int64_t dim, const RowWords& words, void* to) {
  HWY_DYNAMIC_DISPATCH(EncodeRow)(dtype, values, dim, words, to);
}

void decode_row(RowDtype dtype, const void* from, int64_t dim, float* values) {
  HWY_DYNAMIC_DISPATCH(DecodeRow)(dtype, from, dim, values);
}

}  // namespace dovetail::embedding
#endif
