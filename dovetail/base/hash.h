#pragma once

#include <cstdint>
#include <string_view>

namespace dovetail {

/// Returns the XXH64 hash of `bytes`, with seed 0 (Collet, xxHash specification 0.1.1). It
/// serves as the 64-bit key of a categorical id in training data. The hash depends on the bytes
/// alone. An id therefore has the same key in each column, file, rank and version of the program.
uint64_t xxh64(std::string_view bytes);

/// Returns the key of an integer id: the XXH64 hash of its decimal text.
uint64_t integer_key(int64_t integer);

}  // namespace dovetail
