package isonomy.am;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.net.NetUtils;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.webapp.util.WebAppUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The machines of YARN's web proxy, the only ones that may read an application master's page: what YARN's own
 * AmIpFilter admits. Names are looked up again when a stranger comes, every five minutes at most.
 */
final class ProxyHosts implements Predicate<InetAddress> {
  private static final Logger LOG = LoggerFactory.getLogger(ProxyHosts.class);
  private static final long AGAIN_NS = 300_000_000_000L;

  private final Supplier<List<String>> names;
  private final LongSupplier nanos;
  private Set<InetAddress> known;
  private long askedNs;

  ProxyHosts(Supplier<List<String>> names, LongSupplier nanos) {
    this.names = names;
    this.nanos = nanos;
  }

  static ProxyHosts of(Configuration conf) {
    return new ProxyHosts(() -> WebAppUtils.getProxyHostsAndPortsForAmFilter(conf).stream()
        .map(address -> NetUtils.createSocketAddr(address).getHostString()).collect(Collectors.toList()),
        System::nanoTime);
  }

  @Override
  public synchronized boolean test(InetAddress from) {
    if (known != null && known.contains(from)) {
      return true;
    }
    if (known == null || nanos.getAsLong() - askedNs >= AGAIN_NS) {
      known = lookUp();
      askedNs = nanos.getAsLong();
    }
    return known.contains(from);
  }

  private Set<InetAddress> lookUp() {
    Set<InetAddress> found = new HashSet<>();
    for (String name : names.get()) {
      try {
        found.addAll(List.of(InetAddress.getAllByName(name)));
      } catch (UnknownHostException e) {
        LOG.warn("the web proxy's host {} is not known here", name);
      }
    }
    return found;
  }

  /**
   * Where a browser finds an app's page: below the host that it is on, for YARN's proxy is part of the
   * ResourceManager; with a proxy of its own ({@code yarn.web-proxy.address}) at the ResourceManager's address.
   */
  static String pageOf(String appId, Configuration conf) {
    String proxy = conf.get(YarnConfiguration.PROXY_ADDRESS, "");
    return (proxy.isEmpty() ? "" : WebAppUtils.getResolvedRMWebAppURLWithScheme(conf)) + AppPage.UI + appId;
  }
}
