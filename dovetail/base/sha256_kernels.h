#pragma once

#include <cstddef>
#include <cstdint>

namespace dovetail::sha256_kernels {

/// SHA-256 compression function. Updates `state` with the `blocks` blocks of 64 bytes at `data`.
using Compress = void (*)(uint32_t state[8], const uint8_t* data, size_t blocks);

/// Compression function for any processor.
void compress_portable(uint32_t state[8], const uint8_t* data, size_t blocks);

/// Compression function that uses the SHA extensions of x86-64. Requires `has_sha_extensions()`.
void compress_sha_extensions(uint32_t state[8], const uint8_t* data, size_t blocks);
/// Returns true if this processor has the SHA extensions.
bool has_sha_extensions();

}  // namespace dovetail::sha256_kernels
