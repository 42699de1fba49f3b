#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace dovetail::plan::cuda {

/// Puts an allocator in front of torch's allocator for GPUs, if it is not there yet. It hands out
/// planned places (take_planned_place), reports to AllocationObserver, and forwards everything
/// else. It remains until the process ends.
void install_front_allocator();

/// Frees inside a region have no effect between these two calls.
void add_region(const std::byte* begin, size_t bytes);
void remove_region(const std::byte* begin);

}  // namespace dovetail::plan::cuda
