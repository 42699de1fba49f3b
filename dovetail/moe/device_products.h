#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Products of the experts whose rows lie behind one another, and whose ends stay on the device.
namespace dovetail::moe {

/// Returns the products of each expert's part of a and b. In one form `ends` splits the rows of a
/// (P, in), and b is (E, in, out). The result is (P, out). In the other form it splits the columns
/// of a (m, P) and the rows of b (P, n). The result is (E, m, n). ends: (E) int32.
at::Tensor grouped_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends);

/// Returns the expert of each of `places` places, (P) int64. Places behind the last expert's count
/// as the last expert's.
at::Tensor expert_of_place(const at::Tensor& ends, int64_t places);

/// Sums dy (P, out) over each expert's places. Returns (E, out). A product with ones reads no other
/// place, and adds in float32.
at::Tensor sum_by_expert(const at::Tensor& dy, const at::Tensor& ends);

}  // namespace dovetail::moe
