#include "dovetail/ops/workspace.h"

#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <new>

namespace dovetail::ops {

namespace {

struct Free {
  void operator()(float* p) const { std::free(p); }
};

struct Buffer {
  std::unique_ptr<float, Free> data;
  size_t count = 0;
};

constexpr size_t kHugePageBytes = size_t{2} << 20;

Buffer allocate(size_t count) {
  size_t bytes = count * sizeof(float);
  // Large panels are read with many strides at once. Huge pages avoid their TLB misses.
  const size_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : 64;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  Buffer buffer{
      std::unique_ptr<float, Free>(static_cast<float*>(std::aligned_alloc(alignment, bytes))),
      bytes / sizeof(float)};
  if (!buffer.data) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePageBytes) madvise(buffer.data.get(), bytes, MADV_HUGEPAGE);
#endif
  return buffer;
}

}  // namespace

float* workspace(Workspace use, size_t count) {
  thread_local std::array<Buffer, static_cast<size_t>(Workspace::kCount)> buffers;
  Buffer& buffer = buffers[static_cast<size_t>(use)];
  if (buffer.count < count || !buffer.data) {
    buffer = Buffer();
    buffer = allocate(count > 0 ? count : 1);
  }
  return buffer.data.get();
}

}  // namespace dovetail::ops
