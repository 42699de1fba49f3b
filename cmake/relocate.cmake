# Make an installed FOLDER (bin/, lib/) independent of this machine. Copies the libraries from
# Debian packages that the build used. Keeps only the relative entries of each file's run path.
# usage: cmake -DFOLDER=build/wheel -DPYTHON=python -P cmake/relocate.cmake
execute_process(COMMAND ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/../tools/bundle.py ${FOLDER}/lib COMMAND_ERROR_IS_FATAL ANY)
file(GLOB files ${FOLDER}/bin/* ${FOLDER}/lib/libdovetail_*)
foreach(file IN LISTS files)
  file(READ_ELF ${file} RUNPATH path)
  string(REPLACE ":" ";" path "${path}")
  list(FILTER path INCLUDE REGEX "^\\$ORIGIN")
  list(JOIN path ":" path)
  file(RPATH_SET FILE ${file} NEW_RPATH "${path}")
endforeach()
