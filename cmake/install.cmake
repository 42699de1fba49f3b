# `cmake --install build/release --prefix P` serves C++ users. Its component `wheel` is the Python package's content:
# `./dev wheel` packs it from the release build, `pip wheel .` builds it anew with DOVETAIL_WHEEL.
include(GNUInstallDirs)
set(layer_targets ${LAYERS})
list(TRANSFORM layer_targets PREPEND dovetail_)
set(library_dir lib)

# torch, pyarrow and highsbox are siblings of the package in site-packages; anywhere else they come from the environment.
set(library_rpath "$ORIGIN:$ORIGIN/../../torch/lib:$ORIGIN/../../pyarrow:${TORCH_DIR}/lib:${ARROW_DIR}")
set(program_rpath "$ORIGIN/../lib:$ORIGIN/../../torch/lib:$ORIGIN/../../pyarrow:${TORCH_DIR}/lib:${ARROW_DIR}")
set(milp_rpath "$ORIGIN/../../highsbox/highs_dist/lib:${HIGHS_DIR}/lib")
set_target_properties(dovetail PROPERTIES INSTALL_RPATH "${program_rpath}")
set_target_properties(dovetail-milp PROPERTIES INSTALL_RPATH "${milp_rpath}")
foreach(target IN LISTS layer_targets)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${library_rpath}")
endforeach()
install(TARGETS dovetail dovetail-milp RUNTIME DESTINATION bin COMPONENT wheel)
install(TARGETS ${layer_targets} LIBRARY DESTINATION ${library_dir} COMPONENT wheel)
foreach(module dovetail_parquet dovetail_cuda)  # modules that are opened when needed
  if(TARGET ${module})
    set_target_properties(${module} PROPERTIES INSTALL_RPATH "${library_rpath}:$ORIGIN/../../nvidia/cu13/lib:$ORIGIN/../../nvidia/cudnn/lib")
    install(TARGETS ${module} LIBRARY DESTINATION ${library_dir} COMPONENT wheel)
  endif()
endforeach()

if(DOVETAIL_WHEEL)
  install(CODE "
    set(FOLDER \"\${CMAKE_INSTALL_PREFIX}\")
    set(PYTHON \"${Python_EXECUTABLE}\")
    include(\"${CMAKE_SOURCE_DIR}/cmake/relocate.cmake\")" COMPONENT wheel)
endif()

install(DIRECTORY dovetail DESTINATION include COMPONENT development FILES_MATCHING PATTERN "*.h"
        PATTERN "gloo_declarations" EXCLUDE)
install(FILES cmake/dovetail-config.cmake DESTINATION lib/cmake/dovetail COMPONENT development)
