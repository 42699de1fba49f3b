#include "dovetail/data/text/inputs.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/data/files/utf8.h"

namespace dovetail::data {
namespace {

namespace fs = std::filesystem;

bool is_glob(const std::string& text) { return text.find_first_of("*?[") != std::string::npos; }

std::vector<std::string> components(const fs::path& path) {
  std::vector<std::string> names;
  for (const fs::path& part : path) names.push_back(part.string());
  return names;
}

/// Returns true if path components [p, end) match pattern components [q, end).
bool matches(const std::vector<std::string>& path, size_t p,
             const std::vector<std::string>& pattern, size_t q) {
  if (q == pattern.size()) return p == path.size();
  if (pattern[q] == "**") {
    for (size_t skip = p; skip <= path.size(); ++skip)
      if (matches(path, skip, pattern, q + 1)) return true;
    return false;
  }
  return p < path.size() && fnmatch(pattern[q].c_str(), path[p].c_str(), FNM_PERIOD) == 0 &&
         matches(path, p + 1, pattern, q + 1);
}

class Lister {
 public:
  void add_entry(const std::string& text) {
    const size_t passed_before = passed_over_.size();
    const fs::path path(text);
    std::error_code error;
    if (fs::is_directory(path, error)) {
      search(path, [&](const fs::path& relative) {
        const auto& known = text_extensions();
        if (std::ranges::find(known, input_extension(relative)) != known.end()) return true;
        pass_over(relative, "no extension of a text");
        return false;
      });
    } else if (fs::exists(path, error)) {
      return add_file(path, path.filename(), text, Mention::kNamed);
    } else if (is_glob(text)) {
      add_glob(path);
    } else {
      throw UserError(fmt::format("data.text: {} does not exist", text),
                      "give files, folders or globs that exist");
    }
    if (!matched_)
      throw UserError(fmt::format("data.text: {} has no text in it{}{}", text,
                                  passed_over_.size() == passed_before ? "" : "; ",
                                  describe_passed_over(
                                      {passed_over_.begin() + static_cast<ptrdiff_t>(passed_before),
                                       passed_over_.end()})),
                      passed_over_.size() == passed_before + 1 && !last_remedy_.empty()
                          ? last_remedy_
                          : "a folder is searched for text, source code, .jsonl and .parquet; a "
                            "glob or a file's own name takes any name");
    matched_ = false;
  }

  void add_list(const fs::path& list) {
    const std::string content = read_file(list);
    int64_t number = 0;
    for (size_t at = 0; at < content.size();) {
      const size_t end = std::min(content.find('\n', at), content.size());
      const std::string line = content.substr(at, end - at);
      at = end + 1;
      ++number;
      if (line.empty()) continue;
      const std::string place = fmt::format("{}:{}", list.string(), number);
      const size_t tab = line.find('\t');
      if (tab == std::string::npos || line.find('\t', tab + 1) != std::string::npos ||
          tab + 1 == line.size())
        throw UserError("data.file_list: not `root<TAB>relative path`",
                        "one file a line, with one tab", place);
      const fs::path relative(line.substr(tab + 1));
      if (relative.is_absolute())
        throw UserError("data.file_list: the path after the tab is absolute",
                        "give it relative to the root", place);
      add_file(fs::path(line.substr(0, tab)) / relative, relative, place, Mention::kNamed);
    }
    if (files_.empty()) throw UserError("data.file_list names no file", {}, list.string());
  }

  Inputs inputs() && {
    // Two roots may hold the same relative path. Such files keep the order in which they were
    // given.
    std::stable_sort(files_.begin(), files_.end(), [](const InputFile& a, const InputFile& b) {
      return a.relative < b.relative;
    });
    std::ranges::sort(passed_over_, {}, &PassedOver::relative);
    return {std::move(files_), std::move(passed_over_)};
  }

 private:
  enum class Mention { kNamed, kFound };

  void add_glob(const fs::path& pattern) {
    fs::path root;
    std::vector<std::string> rest = components(pattern);
    while (!rest.empty() && !is_glob(rest.front())) {
      root /= rest.front();
      rest.erase(rest.begin());
    }
    if (root.empty()) root = ".";
    std::error_code error;
    if (!fs::is_directory(root, error)) return;
    search(root,
           [&](const fs::path& relative) { return matches(components(relative), 0, rest, 0); });
  }

  template <class Take>
  void search(const fs::path& root, Take&& take) {
    try {
      for (auto it = fs::recursive_directory_iterator(root);
           it != fs::recursive_directory_iterator(); ++it) {
        const std::string name = it->path().filename().string();
        if (name.starts_with(".")) {
          it.disable_recursion_pending();
        } else if (const fs::path relative = it->path().lexically_relative(root);
                   it->is_regular_file() && take(relative)) {
          add_file(it->path(), relative, it->path().string(), Mention::kFound);
        }
      }
    } catch (const fs::filesystem_error& e) {
      throw UserError(
          fmt::format("data.text: cannot search {}: {}", root.string(), e.code().message()));
    }
  }

  void pass_over(const fs::path& relative, std::string reason) {
    passed_over_.push_back(
        {printable(relative.lexically_normal().generic_string()), std::move(reason)});
  }

  void add_file(const fs::path& path, const fs::path& relative, const std::string& place,
                Mention mention) {
    std::error_code error;
    InputFile file;
    file.path = path;
    file.relative = relative.lexically_normal().generic_string();
    if (fs::exists(path, error)) file.head = look_at_input(path);
    file.bytes = file.text_bytes = fs::file_size(path, error);
    if (error)
      throw UserError(fmt::format("cannot read {}: {}", path.string(), error.message()), {}, place);
    if (!is_valid_utf8(file.relative))
      throw UserError(
          fmt::format("the name of a file in {} is not UTF-8", path.parent_path().string()),
          "rename it");
    if (const std::string reason = set_format(file); !reason.empty()) {
      if (mention == Mention::kFound) {
        last_remedy_ = file.head.remedy;
        return pass_over(relative, reason);
      }
      throw UserError(fmt::format("this is {}, not text, JSON lines or Parquet", reason),
                      file.head.remedy, path.string());
    }
    matched_ = true;
    if (file.format == InputFormat::kText &&
        (file.head.extension == ".csv" || file.head.extension == ".tsv"))
      log_warning(
          "{}: a table is one text here, with its delimiters; write its texts as JSON lines or "
          "Parquet",
          path.string());
    if (seen_.insert(fs::canonical(path, error).string()).second) files_.push_back(std::move(file));
  }

  /// Sets the format of `file`. Returns a description of the file if no reader accepts it.
  static std::string set_format(InputFile& file) {
    const InputHead& head = file.head;
    if (head.kind == InputKind::kParquet && head.packing == Packing::kNone) {
      file.format = InputFormat::kParquet;
      return {};
    }
    if (head.kind != InputKind::kText) return head.name;
    if (head.extension == ".parquet")
      throw UserError(fmt::format("this is {}, not a Parquet file",
                                  file.bytes == 0 ? "an empty file" : head.name),
                      "get or write it again", file.path.string());
    if (head.extension == ".jsonl" || head.extension == ".ndjson")
      file.format = InputFormat::kJsonLines;
    if (head.extension == ".json")
      file.format = begins_with_array(file) ? InputFormat::kJsonArray : InputFormat::kJsonLines;
    return {};
  }

  static bool begins_with_array(const InputFile& file) {
    const auto stream = open_input_stream(file.path, file.head);
    char c = ' ';
    while (stream->read(&c, 1) == 1 && (c == ' ' || c == '\t' || c == '\r' || c == '\n')) continue;
    return c == '[';
  }

  std::vector<InputFile> files_;
  std::vector<PassedOver> passed_over_;
  std::set<std::string> seen_;  ///< canonical paths, since entries may overlap
  /// The entry has a file that is read, even if an earlier entry had it.
  bool matched_ = false;
  std::string last_remedy_;  ///< advice for the last file that was skipped for its content
};

}  // namespace

const std::vector<std::string>& text_extensions() {
  static const std::vector<std::string> extensions = {
      ".txt",  ".text", ".md",  ".rst",  ".tex",   ".org",   ".jsonl", ".ndjson", ".parquet",
      ".py",   ".pyi",  ".pyx", ".c",    ".h",     ".cc",    ".hh",    ".cpp",    ".hpp",
      ".cxx",  ".hxx",  ".cu",  ".cuh",  ".m",     ".mm",    ".java",  ".kt",     ".js",
      ".jsx",  ".mjs",  ".ts",  ".tsx",  ".go",    ".rs",    ".rb",    ".php",    ".pl",
      ".pm",   ".lua",  ".r",   ".jl",   ".scala", ".swift", ".cs",    ".fs",     ".hs",
      ".ml",   ".mli",  ".clj", ".el",   ".lisp",  ".scm",   ".ex",    ".exs",    ".erl",
      ".dart", ".zig",  ".f",   ".f90",  ".sql",   ".sh",    ".bash",  ".zsh",    ".html",
      ".css",  ".scss", ".xml", ".yaml", ".yml",   ".toml",  ".ini",   ".cfg",    ".cmake",
      ".mk",   ".proto"};
  return extensions;
}

std::string describe_passed_over(const std::vector<PassedOver>& files) {
  constexpr size_t kShown = 5;
  if (files.empty()) return {};
  std::string text =
      fmt::format("passed over {} file{}:", files.size(), files.size() == 1 ? "" : "s");
  for (size_t i = 0; i < std::min(files.size(), kShown); ++i)
    text += fmt::format("{} {} ({})", i == 0 ? "" : ",", files[i].relative, files[i].reason);
  return text + (files.size() > kShown ? ", ..." : "");
}

Inputs list_inputs(const DataConfig& config) {
  if (config.text.empty() == config.file_list.empty())
    throw UserError(config.text.empty()
                        ? "data.text and data.file_list are both empty: there is no text to prepare"
                        : "data.text and data.file_list are both given",
                    "give one of them, for example --set data.text=books/");
  Lister lister;
  if (!config.file_list.empty()) lister.add_list(config.file_list);
  for (const std::string& entry : config.text) lister.add_entry(entry);
  return std::move(lister).inputs();
}

}  // namespace dovetail::data
