// ctest-labels: fuzz
// Mutated manifests of checkpoints are read or refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/base/file.h"
#include "dovetail/io/checkpoint_manifest.h"
#include "tests/base/temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::io::files_fuzz_test {
namespace {

/// The text with the checksum of its own content, where it is a JSON object: so a mutation reaches
/// the fields.
std::string with_checksum(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return text;
  json.erase("checksum");
  json["checksum"] = sha256_of(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

TEST(CheckpointFuzz, ManifestsAreReadOrRefused) {
  const test::TemporaryFolder folder;
  const std::filesystem::path checkpoint = folder / "step-00000012";
  std::filesystem::create_directories(checkpoint);
  CheckpointManifest full{.step = 12,
                          .files = {{"a.safetensors", 100, std::string(64, '0'), {"w", "x"}}},
                          .state = {{"updates", 12}, {"config", "text"}}};
  CheckpointManifest delta = full;
  delta.base = {.step = 8, .checksum = std::string(64, '1')};
  delta.rows_of = {{"w", "w.rows"}};
  test::fuzz({manifest_text(full), manifest_text(delta)}, 2000, 47, [&](const std::string& input) {
    test::overwrite(checkpoint / "manifest.json", with_checksum(input));
    CheckpointManifest manifest = read_manifest(checkpoint);
    EXPECT_EQ(manifest.step, 12);
    manifest_text(manifest);
  });
}

}  // namespace
}  // namespace dovetail::io::files_fuzz_test
