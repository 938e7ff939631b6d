package isonomy.yarn;

/** The control plane as the plugin sees it: one method, a Request of bridge.proto in and a Response out. */
public interface ControlPlane extends AutoCloseable {
  byte[] exchange(byte[] request);

  @Override
  default void close() {}
}
