# cmake --install: programs, static libraries, headers, and a package that find_package(thinwire) finds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY THINWIRE_LIBRARIES)
get_property(programs GLOBAL PROPERTY THINWIRE_PROGRAMS)
install(TARGETS ${libraries} thinwire_options EXPORT thinwireTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/thinwire)
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(room engine compression parallel model optim data)
  install(DIRECTORY ${room}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/thinwire/${room} FILES_MATCHING PATTERN "*.h")
endforeach()
install(EXPORT thinwireTargets NAMESPACE thinwire:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
configure_package_config_file(${CMAKE_SOURCE_DIR}/scripts/cmake/thinwireConfig.cmake.in ${CMAKE_BINARY_DIR}/thinwireConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/thinwireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_SOURCE_DIR}/scripts/cmake/FindOneDNN.cmake ${CMAKE_BINARY_DIR}/thinwireConfig.cmake ${CMAKE_BINARY_DIR}/thinwireConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
