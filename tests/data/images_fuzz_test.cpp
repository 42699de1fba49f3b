// ctest-labels: fuzz
//
// Mutated images, masks and arrays are accepted or refused. The script tools/make_image_fixtures.py
// makes the seeds.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "dovetail/base/file.h"
#include "dovetail/data/images/image_file.h"
#include "dovetail/data/images/image_set.h"
#include "tests/data/npy.h"
#include "tests/data/temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::data::images_fuzz_test {
namespace {

std::string fixture(const std::string& name) {
  return read_file(std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) / "images" / name);
}

TEST(ImagesFuzz, FilesAreReadOrRefused) {
  const TemporaryFolder folder;
  test::fuzz({fixture("rgb.png"), fixture("palette.png"), fixture("wide.png"), fixture("rgb.jpg"),
              fixture("progressive.jpg"), fixture("gray.jpg")},
             3000, 171, [&](const std::string& input) {
               const auto file = folder.write("x.png", input);
               const at::Tensor image = read_image(file, 3);
               EXPECT_EQ(image.size(0), 3);
               EXPECT_GE(image.max().item<int>(), 0);
             });
}

TEST(ImagesFuzz, MasksAreReadOrRefused) {
  const TemporaryFolder folder;
  test::fuzz({fixture("gray.png"), fixture("palette.png"), fixture("bits.png")}, 2000, 173,
             [&](const std::string& input) {
               const at::Tensor mask = read_mask(folder.write("x.png", input));
               EXPECT_EQ(mask.dim(), 2);
               EXPECT_GE(mask.max().item<int>(), 0);
             });
}

TEST(ImagesFuzz, ArraysAreReadOrRefused) {
  const TemporaryFolder folder;
  const std::string images = test::npy("|u1", false, "3, 4, 5", std::string(60, '\7')),
                    targets = test::npy("|u1", false, "3,", std::string("\0\1\2", 3));
  const ImageForm form{.channels = 1, .height = 4, .width = 4, .classes = 3};
  test::fuzz_each({images, targets}, 2000, 179, [&](const std::string& input, size_t which) {
    const auto x = folder.write("x.npy", which == 0 ? input : images),
               y = folder.write("y.npy", which == 1 ? input : targets);
    const ImageSet set(x, y, form, "images.train", "images.targets");
    for (int64_t i = 0; i < set.size(); ++i) {
      const ImageSet::Sample sample = set.read(i);
      const ImagePart part = center_part(sample.image.size(1), sample.image.size(2), form);
      EXPECT_EQ(scaled(sample, part, form).image.numel(), 16);
    }
  });
}

}  // namespace
}  // namespace dovetail::data::images_fuzz_test
