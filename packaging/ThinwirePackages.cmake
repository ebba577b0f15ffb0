# What `cpack` makes of an installation: Debian packages (thinwire, and thinwire-dev with libraries and headers), and the modulefile.
# How to make each: packaging/README.md. Source tarballs come from packaging/source_tarball.

# The modulefile, for Environment Modules and Lmod. It finds its prefix by its own place, so that a prefix may be moved.
set(THINWIRE_MODULE_REQUIRES "" CACHE STRING "Modules that the installed modulefile asks for, e.g. gcc/12;mpich/4.1")
string(REPLACE ";" " " THINWIRE_MODULE_REQUIRES_TEXT "${THINWIRE_MODULE_REQUIRES}")
set(modulefiles ${CMAKE_INSTALL_DATADIR}/thinwire/modulefiles/thinwire)
file(RELATIVE_PATH THINWIRE_PREFIX_FROM_MODULE ${CMAKE_INSTALL_FULL_DATADIR}/thinwire/modulefiles/thinwire ${CMAKE_INSTALL_PREFIX})
configure_file(packaging/modulefiles/thinwire.in ${CMAKE_BINARY_DIR}/modulefiles/${PROJECT_VERSION} @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/modulefiles/${PROJECT_VERSION} DESTINATION ${modulefiles} COMPONENT modulefile)

# The name and the address of whoever builds packages for others; Debian wants one.
set(CPACK_PACKAGE_CONTACT "The Thinwire authors <thinwire@example.org>" CACHE STRING "Maintainer that packages name")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME thinwire)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains GPT-style transformers with compressed communication")
set(CPACK_COMPONENT_THINWIRE_DESCRIPTION "Pre-trains GPT-2, GPT-NeoX and Llama models over many machines, with tensor,
sequence, pipeline and data parallelism, and compresses what goes between them.
Reads the data and configurations of Megatron-LM and GPT-NeoX.")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Static libraries and headers of Thinwire, for programs that use its parts by
find_package(thinwire) of CMake.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL thinwire dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)  # debian/changelog names it, too
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/packaging/debian/finish_staging.cmake)
set(CPACK_DEBIAN_THINWIRE_PACKAGE_NAME thinwire)
set(CPACK_DEBIAN_THINWIRE_PACKAGE_SECTION science)
set(CPACK_DEBIAN_THINWIRE_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_THINWIRE_PACKAGE_DEPENDS "python3:any")  # sweep, lab
get_property(with_mpi GLOBAL PROPERTY THINWIRE_WITH_MPI)
if(with_mpi)  # the launcher has to be that of the MPI which is built in
  find_package(MPI QUIET COMPONENTS CXX)
  if("${MPI_CXX_INCLUDE_DIRS}" MATCHES openmpi)
    set(launcher openmpi-bin)
    set(mpi_headers ", libopenmpi-dev")
  else()
    set(launcher mpich)
    set(mpi_headers ", libmpich-dev")
  endif()
  set(CPACK_DEBIAN_THINWIRE_PACKAGE_RECOMMENDS ${launcher})
endif()
set(CPACK_DEBIAN_THINWIRE_PACKAGE_SUGGESTS "iproute2, slurm-client")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME thinwire-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
# All that thinwireTargets.cmake names: a program is linked with it.
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libdnnl-dev, nlohmann-json3-dev, libspdlog-dev, libcli11-dev, libxxhash-dev, libyaml-dev, libicu-dev${mpi_headers}")
if(THINWIRE_SENTENCEPIECE AND SENTENCEPIECE_INCLUDE AND SENTENCEPIECE_LIBRARY)
  string(APPEND CPACK_DEBIAN_DEV_PACKAGE_DEPENDS ", libsentencepiece-dev")
endif()
if(THINWIRE_URING AND LIBURING_INCLUDE_DIR AND LIBURING_LIBRARY)
  string(APPEND CPACK_DEBIAN_DEV_PACKAGE_DEPENDS ", liburing-dev")
endif()
include(CPack)
