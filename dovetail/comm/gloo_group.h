#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace c10d {
class Store;
}

namespace dovetail {

/// A rank of a Gloo process group that meets the others through `store`; returns when all are
/// connected. `interface` is the name of a network interface, "" the one of the host's name, "lo"
/// loopback whatever it is called. Throws CommError.
std::shared_ptr<Group> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size, const std::string& interface,
                                       const GroupOptions& options);

/// What a rank without others has.
std::shared_ptr<Group> make_group_of_one();

/// InternalError unless counts and tensors fit one another in a group of `size`.
void check_all_to_all(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<int64_t>& receive, const std::vector<int64_t>& send,
                      int size);

}  // namespace dovetail
