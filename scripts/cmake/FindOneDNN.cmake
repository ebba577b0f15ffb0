# oneDNN as OneDNN::onednn. Debian's own package file asks for OpenCL, which we do not use, so headers and library are found by hand.
find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp HINTS ${ONEDNN_ROOT}/include $ENV{ONEDNN_ROOT}/include $ENV{DNNLROOT}/include)
find_library(ONEDNN_LIBRARY dnnl HINTS ${ONEDNN_ROOT}/lib $ENV{ONEDNN_ROOT}/lib $ENV{DNNLROOT}/lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS ONEDNN_LIBRARY ONEDNN_INCLUDE_DIR)
if(OneDNN_FOUND AND NOT TARGET OneDNN::onednn)
  add_library(OneDNN::onednn UNKNOWN IMPORTED)
  set_target_properties(OneDNN::onednn PROPERTIES IMPORTED_LOCATION ${ONEDNN_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${ONEDNN_INCLUDE_DIR})
endif()
