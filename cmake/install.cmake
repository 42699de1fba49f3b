# `cmake --install build/release --prefix P` for C++ users; with DOVETAIL_WHEEL the same files under the Python package.
include(GNUInstallDirs)
set(layer_targets ${LAYERS})
list(TRANSFORM layer_targets PREPEND dovetail_)
set(library_dir lib)

# torch, pyarrow and highsbox are siblings of the package in site-packages; anywhere else they come from the environment.
if(DOVETAIL_WHEEL)
  set(library_rpath "$ORIGIN:$ORIGIN/../../torch/lib:$ORIGIN/../../pyarrow")
  set(program_rpath "$ORIGIN/../lib:$ORIGIN/../../torch/lib:$ORIGIN/../../pyarrow")
  set(milp_rpath "$ORIGIN/../../highsbox/highs_dist/lib")
else()
  set(library_rpath "$ORIGIN:${TORCH_DIR}/lib:${ARROW_DIR}")
  set(program_rpath "$ORIGIN/../lib:${TORCH_DIR}/lib:${ARROW_DIR}")
  set(milp_rpath "${HIGHS_DIR}/lib")
endif()
set_target_properties(dovetail PROPERTIES INSTALL_RPATH "${program_rpath}")
set_target_properties(dovetail-milp PROPERTIES INSTALL_RPATH "${milp_rpath}")
foreach(target IN LISTS layer_targets)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${library_rpath}")
endforeach()
install(TARGETS dovetail dovetail-milp RUNTIME DESTINATION bin COMPONENT wheel)
install(TARGETS ${layer_targets} LIBRARY DESTINATION ${library_dir} COMPONENT wheel)
foreach(module dovetail_parquet dovetail_cuda)  # what is opened when it is needed
  if(TARGET ${module})
    set_target_properties(${module} PROPERTIES INSTALL_RPATH "${library_rpath}")
    install(TARGETS ${module} LIBRARY DESTINATION ${library_dir} COMPONENT wheel)
  endif()
endforeach()

if(DOVETAIL_WHEEL)
  # What Debian's packages gave the build and the user's machine may not have.
  install(CODE "
    execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/bundle.py
                            \"\${CMAKE_INSTALL_PREFIX}/lib\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT wheel)
endif()

install(DIRECTORY dovetail DESTINATION include COMPONENT development FILES_MATCHING PATTERN "*.h"
        PATTERN "gloo_declarations" EXCLUDE)
install(FILES cmake/dovetail-config.cmake DESTINATION lib/cmake/dovetail COMPONENT development)
