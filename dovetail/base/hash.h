#pragma once

#include <cstdint>
#include <string_view>

namespace dovetail {

/// XXH64 with seed 0 (Collet, xxHash specification 0.1.1): what turns the bytes of an id into its
/// 64-bit key. It depends on the bytes alone, so one id has one key in every column, file, rank and
/// version.
uint64_t xxh64(std::string_view bytes);

/// That of the decimal text of an integer.
uint64_t integer_key(int64_t integer);

}  // namespace dovetail
