#pragma once

#include <filesystem>
#include <optional>

namespace dovetail::cli {

/// File by which the ranks (processes) of a job end it after a failure that a restart cannot fix.
/// Example: a mistake in the config. Without it, torchrun would restart the job.
///
/// `dovetail launch` starts torchrun, passes the file's name in the environment variable
/// DOVETAIL_JOB_END and waits. The first rank that fails prints the error and announces the end: it
/// writes its exit code into the file. All ranks of the machine then exit with 0, so torchrun
/// neither restarts nor reports them. `launch` exits with the code from the file. A rank that was
/// killed writes nothing, so torchrun restarts the job.
class JobEnd {
 public:
  /// Environment variable with the file's name.
  static constexpr const char* kVariable = "DOVETAIL_JOB_END";

  explicit JobEnd(std::filesystem::path file) : file_(std::move(file)) {}
  /// Returns the object for the file in DOVETAIL_JOB_END; nullopt if the variable is not set. It is
  /// set in the ranks that `dovetail launch` started.
  static std::optional<JobEnd> of_this_rank();

  /// Returns true for the first rank of the machine that calls it, false for all others. The rank
  /// that gets true must print the error, then call `announce`.
  bool may_report() const;
  /// Writes the exit code of the job into the file.
  void announce(int exit_code) const;
  /// Starts a thread that waits for an announcement. About a second later, it ends this process
  /// with exit code 0, even if the process waits for another rank.
  void watch() const;

  /// Returns the exit code that was announced; nullopt before an announcement.
  std::optional<int> exit_code() const;
  /// Waits up to `seconds` for an announcement. Returns true if there was one. Use
  /// it if the connection to another rank is lost: that rank may not have announced its failure
  /// yet.
  bool announced_within(double seconds) const;

 private:
  std::filesystem::path file_;
};

}  // namespace dovetail::cli
