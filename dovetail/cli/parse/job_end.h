#pragma once

#include <filesystem>
#include <optional>

namespace dovetail::cli {

/// End of a job of several ranks that a restart cannot mend, such as a mistake in its config.
///
/// `dovetail launch` names a file in DOVETAIL_JOB_END and waits. The first rank that fails reports,
/// and puts its exit code into the file. All ranks of the machine then exit with 0, so torchrun
/// neither restarts them nor reports them; `launch` exits with the code. A rank that was killed
/// puts nothing there, so torchrun restarts the job.
class JobEnd {
 public:
  static constexpr const char* kVariable = "DOVETAIL_JOB_END";

  explicit JobEnd(std::filesystem::path file) : file_(std::move(file)) {}
  /// The job of this rank; nullopt for a process that `dovetail launch` did not start.
  static std::optional<JobEnd> of_this_rank();

  /// True for one rank of the machine: this one reports the failure, then calls `announce`.
  bool may_report() const;
  void announce(int exit_code) const;
  /// Ends this process soon after an announcement, even while it waits for another rank.
  void watch() const;

  /// Exit code that was announced; nullopt while there is none.
  std::optional<int> exit_code() const;
  /// Waits for an announcement. A rank may hear of another one's failure before that one has
  /// reported it.
  bool announced_within(double seconds) const;

 private:
  std::filesystem::path file_;
};

}  // namespace dovetail::cli
