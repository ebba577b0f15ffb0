# Flight recorder, watchdog, core binding: in one process, and under a launcher.
foreach(name flight_recorder_test binding_test watchdog_test)
  if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/${name}.cpp)
    thinwire_test(${name} ${CMAKE_CURRENT_LIST_DIR}/${name}.cpp LINK thinwire_parallel)
  endif()
endforeach()
