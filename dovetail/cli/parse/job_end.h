#pragma once

#include <filesystem>
#include <optional>

namespace dovetail::cli {

/// End of a job of several ranks after a failure that a restart cannot fix, such as a mistake in
/// its config.
///
/// `dovetail launch` names a file in DOVETAIL_JOB_END and waits. The first rank that fails reports
/// the failure and writes its exit code into the file. All ranks of the machine then exit with 0,
/// so torchrun neither restarts nor reports them. `launch` exits with the code from the file. A
/// rank that was killed writes nothing, so torchrun restarts the job.
class JobEnd {
 public:
  static constexpr const char* kVariable = "DOVETAIL_JOB_END";

  explicit JobEnd(std::filesystem::path file) : file_(std::move(file)) {}
  /// Returns the job of this rank; nullopt for a process that `dovetail launch` did not start.
  static std::optional<JobEnd> of_this_rank();

  /// Returns true for one rank of the machine. This rank reports the failure, then calls
  /// `announce`.
  bool may_report() const;
  void announce(int exit_code) const;
  /// Ends this process soon after an announcement, even while it waits for another rank.
  void watch() const;

  /// Returns the exit code that was announced; nullopt before an announcement.
  std::optional<int> exit_code() const;
  /// Waits for an announcement; returns false after `seconds` without one. A rank may notice
  /// another rank's failure before that rank has reported it.
  bool announced_within(double seconds) const;

 private:
  std::filesystem::path file_;
};

}  // namespace dovetail::cli
