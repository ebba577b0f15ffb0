# cmake --install: `thinwire` on the PATH, its programs, what ships with them, static libraries, headers, and a package that
# find_package(thinwire) finds. No path is absolute: a prefix may be moved, and links may lead to bin/thinwire.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME thinwire)  # what a package of programs holds; libraries and headers are dev
get_property(libraries GLOBAL PROPERTY THINWIRE_LIBRARIES)
get_property(programs GLOBAL PROPERTY THINWIRE_PROGRAMS)
install(TARGETS ${libraries} thinwire_options EXPORT thinwireTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/thinwire COMPONENT dev)
set(libexec ${CMAKE_INSTALL_LIBEXECDIR}/thinwire)
set(share ${CMAKE_INSTALL_DATADIR}/thinwire)
install(TARGETS thinwire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS ${programs} RUNTIME DESTINATION ${libexec})

# share/thinwire lies as the source tree does, so that scripts, plans and configurations find each other in both; links in its build/
# lead to the programs.
install(DIRECTORY configs docs DESTINATION ${share})
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${share})
file(GLOB modules CONFIGURE_DEPENDS scripts/sweep_*.py scripts/lab_*.py)
install(FILES ${modules} scripts/measured.py scripts/batch_common.sh DESTINATION ${share}/scripts)
foreach(script sweep lab calibrate check_configs trace_picture.py)
  install(PROGRAMS scripts/${script} DESTINATION ${share}/scripts)
endforeach()
install(DIRECTORY scripts/slurm scripts/lsf scripts/pbs scripts/flux DESTINATION ${share}/scripts USE_SOURCE_PERMISSIONS)
install(FILES data/text/tiny.txt DESTINATION ${share}/data/text)
install(FILES ${CMAKE_BINARY_DIR}/data/tiny_text_document.bin ${CMAKE_BINARY_DIR}/data/tiny_text_document.idx DESTINATION ${share}/build/data)
file(RELATIVE_PATH programs_from_share ${CMAKE_INSTALL_FULL_DATADIR}/thinwire/build ${CMAKE_INSTALL_FULL_LIBEXECDIR}/thinwire)
file(REMOVE_RECURSE ${CMAKE_BINARY_DIR}/program_links)  # of programs that another configuration had
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/program_links)
foreach(program ${programs})
  file(CREATE_LINK ${programs_from_share}/${program} ${CMAKE_BINARY_DIR}/program_links/${program} SYMBOLIC)
endforeach()
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/man/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${CMAKE_BINARY_DIR}/share/bash-completion/completions/thinwire DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(DIRECTORY ${CMAKE_BINARY_DIR}/program_links/ DESTINATION ${share}/build)

foreach(module engine compression parallel model optim data)
  install(DIRECTORY ${module}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/thinwire/${module} COMPONENT dev FILES_MATCHING PATTERN "*.h")
endforeach()
install(EXPORT thinwireTargets NAMESPACE thinwire:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire COMPONENT dev)
get_property(THINWIRE_WITH_MPI GLOBAL PROPERTY THINWIRE_WITH_MPI)
if(NOT THINWIRE_WITH_MPI)
  set(THINWIRE_WITH_MPI OFF)
endif()
configure_package_config_file(${CMAKE_SOURCE_DIR}/scripts/cmake/thinwireConfig.cmake.in ${CMAKE_BINARY_DIR}/thinwireConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/thinwireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_SOURCE_DIR}/scripts/cmake/FindOneDNN.cmake ${CMAKE_BINARY_DIR}/thinwireConfig.cmake ${CMAKE_BINARY_DIR}/thinwireConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire COMPONENT dev)
