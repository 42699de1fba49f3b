#pragma once

#include <filesystem>
#include <memory>

#include "dovetail/comm/group.h"
#include "dovetail/io/checkpoint_writers.h"

namespace dovetail::train {

/// Returns the ranks of `world` as processes that write checkpoints together. They communicate in a
/// group of their own (Gloo). So threads may use it while `world` does other work, and a failure in
/// it leaves `world` usable. Returns null for a world of one rank. All ranks call it together.
std::shared_ptr<io::CheckpointWriters> checkpoint_writers(comm::Group& world);

/// Throws UserError on all ranks if a rank does not see the folder `folder` of rank 0. The error
/// names these ranks. Rank 0 makes a file of a random name there, and removes it. All ranks call it
/// together; rank 0 has made the folder.
void check_shared_folder(const std::filesystem::path& folder, comm::Group& world);

}  // namespace dovetail::train
